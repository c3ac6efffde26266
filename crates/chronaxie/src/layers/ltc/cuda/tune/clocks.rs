//! What an unfold takes, by models of what was measured.

/// Slots of which the gates are computed whether they are in use or not, as in held.cuh.
pub(super) const fn always(slots: usize) -> usize {
    match slots {
        33.. => 24,
        16.. => slots * 2 / 5 * 2,
        _ => (slots * 2).div_ceil(3) / 2 * 2,
    }
}

/// Clocks of a scheduler that a warp's gate takes: special operations bind, or issue slots in the adjoint.
pub(super) const fn gate_clocks(adjoint: bool, fast: bool) -> usize {
    match (adjoint, fast) {
        (false, true) => 8,
        (true, true) => 13,
        (false, false) => 16,
        (true, false) => 18,
    }
}

/// Clocks of an unfold of `groups` groups of rows in one cluster, each of which keeps the special-function unit busy for
/// `gates` clocks (measured: recurrence.cu and exchange.cuh). Of each group the whole chain counts: the kernel of several takes longer
/// than several of one (H100, 256 neurons, clocks of each and of one alone: 1250 and 1100 with 20 warps, 1370 and 1320 with 16,
/// 1600 and 1410, 2150 and 1940 with 8). Rebuilt unfolds, which are short, hide more of it.
pub(super) const fn unfold_clocks(groups: usize, gates: usize, blocks: usize, threads: usize, rebuild: bool) -> usize {
    // A barrier of more warps takes longer. What is left of the time of the compared cases, by cluster size.
    let one = gates + threads / 4 + if blocks == 1 { 450 } else { 660 + 40 * blocks };
    let hidden = if gates < 1500 { gates * 7 / 9 + 380 } else { gates + 50 };
    let all = groups * if rebuild { hidden } else { one * 9 / 8 };
    if groups <= 1 || all < one { one } else { all }
}

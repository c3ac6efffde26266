//! What is chosen for which shapes.

use super::*;
use crate::layers::ltc::{Connectivity, Save};
use std::sync::Arc;

fn problem(batch: usize, steps: usize, inputs: usize, hidden: usize) -> Ltc {
    Ltc::new(batch, steps, Arc::new(Connectivity::full(inputs, hidden).unwrap()))
}

#[test]
fn the_portable_kernels_are_the_same_on_every_device() {
    let p = problem(24, 8, 128, 64);
    let c: Vec<Config> = DeviceProps::FIXTURES.iter().map(|d| choose(&p, d, Some("rows")).unwrap()).collect();
    assert!(c.iter().all(|x| *x == c[0]));
    assert!(c[0].recurrence.is_none() && c[0].adjoint.is_none() && c[0].sensory.is_none());
    assert_eq!((c[0].lanes, c[0].sensory_lanes, c[0].threads), (8, 32, 512));
    assert_eq!((c[0].forward_chunk, c[0].backward_chunk), (8, 8));
    assert!(c[0].to_string().contains("lanes=8+32"));
}

#[test]
fn hidden_of_4096_fits_every_device_and_the_limit_is_said() {
    // A wiring of one synapse a neuron keeps the test's lists small.
    use crate::layers::ltc::Synapses;
    let wide = |h: usize| {
        let ring = Synapses::from_fn(h, h, |i, j| i == j).unwrap();
        Ltc::new(1, 1, Arc::new(Connectivity::new(ring, Synapses::full(0, h).unwrap()).unwrap()))
    };
    assert!(DeviceProps::FIXTURES.iter().all(|d| choose(&wide(4096), d, None).is_ok()));
    let e = choose(&wide(6000), &DeviceProps::SM_75, None).unwrap_err().to_string();
    assert!(e.contains("hidden = 6000 is more than 5461"), "{e}");
}

#[test]
fn long_sequences_are_cut() {
    let c = choose(&problem(128, 256, 64, 256), &DeviceProps::SM_90, Some("rows")).unwrap();
    assert!(c.backward_chunk < 64 && c.backward_chunk > 8, "{c}");
    assert_eq!(slice(1152, 8), 64);
    assert_eq!(slice(20_000, 128), 1250);
}

/// What the compared cases get, and that devices without clusters get none.
#[test]
fn synapses_are_held_where_they_fit() {
    let blocks = |p: &Ltc, d: &DeviceProps| choose(p, d, None).unwrap().recurrence.map(|h| h.blocks);
    let half = |batch, inputs, hidden| {
        let c = crate::layers::ltc::entry::random_connectivity(inputs, hidden, 0.5, 1).unwrap();
        Ltc { precision: Precision::Fast, ..Ltc::new(batch, 16, Arc::new(c)) }
    };
    let (a, b, c) = (half(24, 128, 64), half(32, 128, 128), half(128, 64, 256));
    let chosen = [&a, &b, &c].map(|p| choose(p, &DeviceProps::SM_90, None).unwrap().to_string());
    // Few rows share a cluster each where there are such.
    let most = |d: &DeviceProps| Some(if d.compute_capability < (9, 0) { 1 } else { 4 });
    assert_eq!(DeviceProps::FIXTURES.map(|d| blocks(&a, &d)), DeviceProps::FIXTURES.map(|d| most(&d)), "{chosen:#?}");
    assert_eq!(blocks(&b, &DeviceProps::SM_90), Some(4), "{chosen:#?}");
    assert_eq!(blocks(&c, &DeviceProps::SM_90), Some(4), "{chosen:#?}");
    assert_eq!(blocks(&c, &DeviceProps::SM_80), None);
    let config = choose(&c, &DeviceProps::SM_90, None).unwrap();
    assert!(config.adjoint.is_some() && config.rebuild.is_some() && config.sensory.is_some());
    assert!([config.recurrence, config.rebuild].iter().flatten().all(|h| h.rows == 2 && h.groups == 2), "{config}");
    // The adjoint has two groups of four rows in turn, whose warps ask for registers four together, and leaves one sum a cluster.
    let turns = |p: &Ltc, name| choose(p, &DeviceProps::SM_90, name).unwrap().adjoint.filter(Held::turns);
    let adjoint = turns(&c, None).unwrap();
    assert_eq!((adjoint.rows, adjoint.halves(), adjoint.threads % 128), (4, 1, 0), "{config}");
    assert_eq!(adjoint.launched(), adjoint.threads + 128);
    assert!(turns(&Ltc { precision: Precision::Exact, ..c.clone() }, None).is_some());
    assert_eq!(turns(&c, Some("bc8r4s20g1")), None);
    assert_eq!(turns(&half(16, 64, 33), Some("bc2r4s20g2")).map(|h| h.blocks), Some(2));
    let refused = choose(&Ltc { unfolds: 5, ..c.clone() }, &DeviceProps::SM_90, Some("bc8r4s20g2")).unwrap();
    assert!(!refused.adjoint.is_some_and(|h| h.quad), "{refused}");
    // Many rows go two or four side by side; few do not, nor what has an odd number of unfolds.
    let four = |p: &Ltc| {
        let c = choose(p, &DeviceProps::SM_90, None).unwrap();
        [c.recurrence, c.rebuild, c.adjoint].map(|h| h.is_some_and(|h| h.quad))
    };
    assert_eq!(four(&c), [true; 3], "{config}");
    assert_eq!(four(&Ltc { unfolds: 5, ..c.clone() }), [false; 3]);
    assert_eq!(four(&Ltc { batch: 16, ..c.clone() }), [false, true, false]);
    assert_eq!(four(&Ltc { save: Save::Store, ..c.clone() })[..2], [false; 2]);
    let exact = choose(&Ltc { precision: Precision::Exact, ..c.clone() }, &DeviceProps::SM_90, None).unwrap();
    assert!(exact.recurrence.is_some_and(|h| h.quad && h.rows == 2), "{exact}");
    // A multiprocessor fewer does not take twice the rows.
    let mut fewer = DeviceProps::SM_90;
    fewer.sm_count = 131;
    let rows = |d| choose(&c, &d, None).unwrap().recurrence.map(|h| h.rows * h.groups);
    assert_eq!(rows(DeviceProps::SM_90), rows(fewer));
}

/// A sparse wiring, whose command neurons have nearly all synapses, has few slots in each lane.
#[test]
fn a_sparse_wiring_takes_few_slots() {
    use crate::layers::ltc::wirings::Rule;
    let rule = Rule::AutoNcp { units: 256, output_size: 32, sparsity_level: 0.5, seed: 22222 };
    let connectivity = Arc::new(rule.build(32).unwrap().connectivity().unwrap());
    let p = Ltc { precision: Precision::Fast, ..Ltc::new(128, 64, connectivity) };
    let c = choose(&p, &DeviceProps::SM_90, None).unwrap();
    assert!(c.levels_adjoint.is_some(), "{c}");
    let turns = choose(&p, &DeviceProps::SM_90, Some("br4s8g2")).unwrap();
    assert!(turns.adjoint.is_some_and(|h| h.turns() && h.slots == 8), "{turns}");
    assert!(c.levels.is_some_and(|l| l.row.is_some()), "{c}");
    // Of short sequences: four rows side by side are slower for so few gates, and so are two groups in turn.
    for batch in [64, 128] {
        let short = choose(&Ltc { batch, steps: 8, ..p.clone() }, &DeviceProps::SM_90, None).unwrap();
        assert!(short.recurrence.is_some_and(|h| !h.quad && h.groups == 1), "{short}");
    }
}

/// Few rows go back one at a time, with the sums of synapses in registers where these fit, in no more memory than others take.
#[test]
fn few_rows_go_back_by_the_shortest_chain() {
    let half = |batch, steps, hidden| {
        let c = crate::layers::ltc::entry::random_connectivity(128, hidden, 0.5, 1).unwrap();
        Ltc { precision: Precision::Fast, ..Ltc::new(batch, steps, Arc::new(c)) }
    };
    let p = half(32, 64, 128);
    let of = |p: &Ltc, name| choose(p, &DeviceProps::SM_90, name).unwrap();
    let asked = Some("bc3r1s14");
    for c in [of(&p, asked), of(&p, None)] {
        assert!(c.adjoint.is_some_and(|h| h.full()) && c.sums.is_none() && c.together(&p), "{c}");
        // Of the words that are kept there is no trace, and so one chunk.
        assert!(c.adjoint.is_some_and(|h| h.words) && c.rebuild.is_none() && c.backward_chunk == 64, "{c}");
    }
    let rebuilt = of(&Ltc { save: Save::Recompute, ..p.clone() }, asked);
    assert!(rebuilt.adjoint.is_some_and(|h| h.full() && !h.words) && rebuilt.rebuild.is_some(), "{rebuilt}");
    assert_eq!(rebuilt.backward_chunk, 32, "{rebuilt}");
    assert!(of(&p, asked).adjoint.is_some_and(|h| h.blocks == 3 && h.threads == 256));
    // Two small blocks share a multiprocessor.
    let small = of(&p, Some("bc7r1s14"));
    assert!(small.adjoint.is_some_and(|h| h.full() && h.threads == 128), "{small}");
    let old = of(&p, Some("bc3r1s20g1"));
    assert!(old.adjoint.is_some_and(|h| !h.row && h.blocks == 3) && old.sums.is_none() && !old.together(&p), "{old}");
    assert!(of(&Ltc { unfolds: 5, ..p.clone() }, asked).adjoint.is_some_and(|h| h.full()), "any unfolds from two on");
    for other in [Ltc { unfolds: 1, ..p.clone() }, Ltc { unfolds: 1000, ..p.clone() }, Ltc { batch: 512, ..p.clone() }]
    {
        assert!(of(&other, None).adjoint.is_none_or(|h| !h.chain()), "{}", of(&other, None));
    }
    // Twice as many rows as go at once, too; more are faster several side by side.
    assert!(of(&half(64, 64, 128), None).adjoint.is_some_and(|h| h.full()));
    // Where the sums do not fit, they are left to another kernel.
    let wide = half(8, 64, 256);
    let c = of(&wide, None);
    assert!(c.adjoint.is_some_and(|h| h.chain() && !h.full()) && c.sums.is_some(), "{c}");
    assert!(of(&Ltc { unfolds: 5, ..wide }, Some("bc8r1s24")).adjoint.is_none(), "its unfolds go in pairs");
    for device in DeviceProps::FIXTURES.iter().filter(|d| d.compute_capability.0 != 9) {
        assert!(choose(&p, device, None).unwrap().adjoint.is_none_or(|h| !h.full()), "{}", device.arch());
    }
    assert!(choose(&p, &DeviceProps::SM_80, asked).unwrap().adjoint.is_none());
    // What belongs to the inputs is made of all steps together where these are not too many.
    let long = half(32, 4000, 128);
    let c = of(&long, asked);
    assert!(c.adjoint.is_some_and(|h| h.full()) && !c.together(&long), "{c}");
}

/// Unfolds are rebuilt in as many groups in turn as leave no cluster idle.
#[test]
fn rebuilt_groups_fit_their_chunk() {
    let of = |steps| {
        let c = crate::layers::ltc::entry::random_connectivity(16, 128, 0.5, 1).unwrap();
        let p = Ltc { precision: Precision::Fast, save: Save::Recompute, ..Ltc::new(32, steps, Arc::new(c)) };
        choose(&p, &DeviceProps::SM_90, None).unwrap()
    };
    for steps in [8, 16, 22, 32] {
        let c = of(steps);
        let (h, all) = (c.rebuild.unwrap(), (32 * c.backward_chunk).div_ceil(4));
        assert!(h.blocks == 1 && h.rows == 4, "{c}");
        let turns = |g: usize| all.div_ceil(132 * g) * g;
        assert!((1..=2).all(|g| turns(h.groups) <= turns(g)), "{c}");
    }
}

/// A short pass of few rows is a cluster a row, or one block of more rows, forward and backward; what these cannot do is left to the others.
#[test]
fn short_sequences_take_one_launch() {
    let c = Arc::new(crate::layers::ltc::entry::random_connectivity(128, 64, 0.5, 1).unwrap());
    let short = Ltc { precision: Precision::Fast, ..Ltc::new(24, 8, c) };
    let of = |p: &Ltc| {
        let c = choose(p, &DeviceProps::SM_90, None).unwrap();
        (c.recurrence.is_some_and(|h| h.whole), c.adjoint.is_some_and(|h| h.whole))
    };
    assert_eq!(of(&short), (true, true));
    assert_eq!(of(&Ltc { layer_norm: true, ..short.clone() }), (true, false));
    assert_eq!(of(&Ltc { save: Save::Store, ..short.clone() }), (true, true));
    for other in [
        Ltc { unfolds: 5, ..short.clone() },
        Ltc { steps: 100, ..short.clone() },
        Ltc { batch: 133, ..short.clone() },
        Ltc { precision: Precision::Exact, ..short.clone() },
        problem(24, 8, 128, 128),
    ] {
        assert_eq!(of(&other), (false, false), "{other:?}");
    }
    let asked = |name| choose(&short, &DeviceProps::SM_90, Some(name)).unwrap();
    assert!(!asked("bc1r1s8").adjoint.is_some_and(|h| h.whole), "an adjoint that was asked for");
    let blocks = |c: Config| {
        let [a, b] = [c.recurrence, c.adjoint].map(|h| h.filter(|h| h.whole).map(|h| h.blocks));
        (a == b).then_some(a).flatten()
    };
    let of_rows = |batch| blocks(choose(&Ltc { batch, ..short.clone() }, &DeviceProps::SM_90, None).unwrap());
    assert_eq!([1, 24, 50, 132, 133].map(of_rows), [Some(4), Some(4), Some(2), Some(1), None]);
    for (name, n) in [("c4r1s12", 4), ("c2r1s12", 2), ("c1r1s12", 1)] {
        assert_eq!(blocks(asked(name)), Some(n), "{name}");
    }
    // Both kernels' shared memory is what a block may have, and clusters are of compute capability 9.0.
    for device in DeviceProps::FIXTURES {
        let c = choose(&short, &device, None).unwrap();
        for h in [c.recurrence, c.adjoint].into_iter().flatten().filter(|h| h.whole) {
            assert!(h.shared <= device.shared_per_block_optin, "{c}");
            assert!(h.blocks == 1 || device.compute_capability >= (9, 0), "{c}");
        }
    }
    assert_eq!(asked("c4r1s20").recurrence.map(|h| (h.blocks, h.row, h.whole)), Some((4, true, false)));
}

#[test]
fn variants_are_asked_for_by_name() {
    let p = problem(8, 4, 3, 40);
    let held = choose(&p, &DeviceProps::SM_90, Some("c2r2s8g2")).unwrap().recurrence.unwrap();
    assert_eq!((held.blocks, held.rows, held.slots, held.groups), (2, 2, 8, 2));
    let adjoint = choose(&p, &DeviceProps::SM_90, Some("bc2r1s20")).unwrap().adjoint.unwrap();
    assert_eq!((adjoint.blocks, adjoint.rows, adjoint.slots), (2, 1, 20));
    let message = |name| choose(&p, &DeviceProps::SM_90, Some(name)).unwrap_err().to_string();
    assert!(message("fastest").contains("variant `fastest` is neither `rows` nor"), "{}", message("fastest"));
    for name in ["c2r", "é", "c", "c0", "b", "c2é4", "c99999999999999999999"] {
        assert!(message(name).contains(&format!("variant `{name}`")), "{}", message(name));
    }
    assert!(message("c9").contains("cannot hold 1600 synapses of 40 neurons"));
    let c = choose(&p, &DeviceProps::SM_90, Some("rowst3")).unwrap();
    assert_eq!((c.recurrence, c.forward_chunk, c.backward_chunk), (None, 3, 3));
    for name in ["rowst0", "rowst", "rows3", "rowst2x"] {
        assert!(message(name).contains(&format!("variant `{name}` is neither")), "{}", message(name));
    }
}

/// What no cluster holds is divided over the device, forward and back: teams as small as their blocks' shared memory allows, none
/// that has no rows; what does not fit is streamed.
#[test]
fn many_synapses_are_divided_over_the_device() {
    let half = |batch, hidden, density| {
        let c = crate::layers::ltc::entry::random_connectivity(8, hidden, density, 1).unwrap();
        Ltc { precision: Precision::Fast, ..Ltc::new(batch, 16, Arc::new(c)) }
    };
    let of = |p: &Ltc, d: &DeviceProps| {
        let c = choose(p, d, None).unwrap();
        [c.grid, c.grid_rebuild, c.grid_adjoint]
    };
    for (p, device) in [
        (half(64, 512, 0.5), DeviceProps::SM_90),
        (half(16, 512, 0.5), DeviceProps::SM_90),
        (half(64, 1024, 0.5), DeviceProps::SM_90),
        (half(1, 2048, 0.5), DeviceProps::SM_90),
        (half(16, 512, 0.5), DeviceProps::SM_80),
    ] {
        for g in of(&p, &device) {
            let g = g.unwrap();
            assert!(g.blocks * g.teams <= device.sm_count as usize, "{g}");
            assert!(g.shared <= device.shared_per_block_optin, "{g}");
            assert!(g.owners * g.blocks >= p.hidden && g.held > 0, "{g}");
            assert!(g.rows * g.lanes == g.group_rows() && g.warps() * g.groups == 16, "{g}");
        }
    }
    let teams = |p: &Ltc| of(p, &DeviceProps::SM_90)[0].unwrap().teams;
    assert!(teams(&half(64, 512, 0.5)) > 1 && teams(&half(1, 512, 0.5)) == 1);
    // Held by clusters, of other devices, with an LSTM, or not wanted: nothing is divided.
    assert_eq!(of(&half(64, 256, 0.5), &DeviceProps::SM_90), [None; 3]);
    assert_eq!(of(&half(64, 512, 0.5), &DeviceProps::SM_75), [None; 3]);
    assert_eq!(of(&Ltc { mixed_memory: true, ..half(2, 512, 0.5) }, &DeviceProps::SM_90), [None; 3]);
    let rows = choose(&half(2, 512, 0.5), &DeviceProps::SM_90, Some("rows")).unwrap();
    assert_eq!((rows.grid, rows.grid_adjoint), (None, None));
    // Where unfolds are stored none are rebuilt; without a backward pass there is no adjoint.
    assert!(of(&Ltc { save: Save::Store, ..half(2, 512, 0.5) }, &DeviceProps::SM_90)[1].is_none());
    assert_eq!(of(&Ltc { backward: false, ..half(2, 512, 0.5) }, &DeviceProps::SM_90)[1..], [None; 2]);
}

/// A name asks for all of them, or for one of those of the backward pass, which then is theirs.
#[test]
fn divided_synapses_are_asked_for_by_name() {
    let p = problem(8, 4, 3, 40);
    let named = |name| choose(&p, &DeviceProps::SM_90, Some(name)).unwrap();
    let c = named("gridc3r8g2s1t2");
    let g = c.grid.unwrap();
    assert_eq!((g.blocks, g.group_rows(), g.groups, g.held), (3, 8, 2, 1), "{c}");
    assert!(c.recurrence.is_none() && c.adjoint.is_none() && c.grid_adjoint.is_some() && c.grid_rebuild.is_some());
    assert_eq!((c.forward_chunk, c.backward_chunk), (2, 2));
    let c = named("bgridc2r16");
    assert!(c.recurrence.is_some() && c.grid.is_none() && c.adjoint.is_none(), "{c}");
    assert_eq!(c.grid_adjoint.map(|g| (g.blocks, g.group_rows())), Some((2, 16)));
    let c = named("ugridr32");
    assert_eq!(c.grid_rebuild.map(|g| g.group_rows()), Some(32), "{c}");
    let message = |name| choose(&p, &DeviceProps::SM_90, Some(name)).unwrap_err().to_string();
    for name in ["gridc3x", "gridr", "grid3", "grids0"] {
        assert!(message(name).contains(&format!("variant `{name}` is neither")), "{}", message(name));
    }
    assert!(message("gridr5").contains("cannot hold 1600 synapses of 40 neurons"));
}

/// An LSTM runs where a block walks a row, on every device; its memory fits a block and its scratch a chunk.
#[test]
fn mixed_memory_walks_rows() {
    let mixed = |batch, steps, inputs, hidden| Ltc { mixed_memory: true, ..problem(batch, steps, inputs, hidden) };
    for device in DeviceProps::FIXTURES {
        for p in [mixed(24, 8, 128, 64), mixed(128, 64, 3, 256), Ltc { save: Save::Store, ..mixed(3, 2, 4, 33) }] {
            let c = choose(&p, &device, None).unwrap();
            assert!(c.mixed && c.recurrence.is_none() && c.adjoint.is_none() && c.rebuild.is_none(), "{c}");
            assert!(c.sensory_adjoint.is_none() && c.to_string().contains("row-per-block with LSTM"), "{c}");
            let floats = if p.hidden < c.threads as usize { c.threads } else { 0 };
            assert_eq!([c.forward_shared, c.adjoint_shared], [28 * p.hidden as u32, 24 * p.hidden as u32 + 4 * floats]);
        }
    }
    let p = mixed(128, 256, 64, 256);
    let (with, without) = (
        choose(&p, &DeviceProps::SM_90, Some("rows")),
        choose(&problem(128, 256, 64, 256), &DeviceProps::SM_90, Some("rows")),
    );
    let (with, without) = (with.unwrap(), without.unwrap());
    assert!(with.forward_chunk < without.forward_chunk && with.backward_chunk < without.backward_chunk);
    assert!(with.backward_chunk * p.batch * p.hidden * 16 <= CHUNK_BYTES);
    let message = |p: &Ltc, name| choose(p, &DeviceProps::SM_75, name).unwrap_err().to_string();
    for name in ["c1r1s4", "bc2r2", "uc2r2"] {
        let e = message(&p, Some(name));
        assert_eq!(
            e,
            format!(
                "ltc: variant `{name}` holds synapses in registers, where no LSTM runs; with mixed memory there is `rows`"
            )
        );
    }
    use crate::layers::ltc::Synapses;
    let ring = Synapses::from_fn(3000, 3000, |i, j| i == j).unwrap();
    let c = Arc::new(Connectivity::new(ring, Synapses::full(0, 3000).unwrap()).unwrap());
    let wide = Ltc { mixed_memory: true, ..Ltc::new(1, 1, c) };
    assert!(message(&wide, None).contains("hidden = 3000 is more than 2340"), "{}", message(&wide, None));
    let many = Ltc { batch: 1 << 31, ..mixed(1, 1, 1, 1) };
    assert!(message(&many, None).contains("ltc: B = 2147483648 with mixed memory is more than 2147483647"));
}

/// The kernel is the same for every number of steps, so that a new length compiles nothing.
#[test]
fn the_kernels_do_not_depend_on_the_number_of_steps() {
    let kernels = |steps| {
        let c = choose(&problem(24, steps, 16, 64), &DeviceProps::SM_90, None).unwrap();
        [c.recurrence, c.rebuild, c.adjoint, c.sensory].map(|h| h.map(|h| (h.rows, h.slots, h.blocks > 1)))
    };
    assert!([2, 7, 33, 300, 4000].into_iter().all(|steps| kernels(steps) == kernels(1)));
}

#[test]
fn no_shorter_chunk_has_more_slices_than_there_is_room_for() {
    let slices = |rows: usize, blocks| rows.div_ceil(slice(rows, blocks));
    assert!(slices(4095, 64) > slices(4096, 64), "{} and {}", slices(4095, 64), slices(4096, 64));
    for blocks in [0, 1, 2, 3, 7, 32, 64, 100, 700, 5000] {
        let mut most = 0;
        for rows in 1..12_000 {
            most = most.max(slices(rows, blocks));
            let room = most_slices(rows, blocks);
            assert!(most <= room && room <= most + 1, "{rows} rows, {blocks} blocks: {most} slices, room for {room}");
        }
    }
}

/// Many neurons without synapses: one block without lanes for them, where nothing is kept of unfolds, and on the GPUs for which there is code.
#[test]
fn lone_neurons_are_seen() {
    let c = entry_connectivity(256);
    let p = |batch, steps| Ltc { precision: Precision::Fast, ..Ltc::new(batch, steps, c.clone()) };
    let of = |p: &Ltc, props: &DeviceProps, name| choose(p, props, name).unwrap().recurrence;
    let lone = of(&p(128, 8), &DeviceProps::SM_90, None).unwrap();
    assert!(lone.lone && (lone.blocks, lone.slots, lone.rows) == (1, 28, 1), "{lone}");
    assert!(lone.to_string().ends_with(" lone"));
    let unfolds = Ltc { save: Save::Store, ..p(2, 2) };
    assert!(of(&unfolds, &DeviceProps::SM_90, None).is_none_or(|h| !h.lone));
    // Whoever asks for it by name is told why not.
    let e = choose(&unfolds, &DeviceProps::SM_90, Some("c1r1s28")).unwrap_err().to_string();
    assert!(e.contains("of which unfolds are kept: it keeps none") && e.contains("store=false"), "{e}");
    assert!(of(&p(128, 64), &DeviceProps::SM_80, None).is_none_or(|h| !h.lone));
    let exact = Ltc { precision: Precision::Exact, ..p(128, 64) };
    assert!(of(&exact, &DeviceProps::SM_90, None).is_none_or(|h| !h.lone));
}

fn entry_connectivity(neurons: usize) -> Arc<Connectivity> {
    let wiring = crate::layers::ltc::wirings::Rule::auto_ncp(neurons, neurons / 8).build(32).unwrap();
    Arc::new(wiring.connectivity().unwrap())
}

/// AutoNCP's synapses hardly ever wait for each other: level by level where that is sooner, by name anywhere, and refused where there are
/// no levels.
#[test]
fn nearly_acyclic_wirings_go_level_by_level() {
    use crate::layers::ltc::wirings::Rule;
    let wired = |batch, steps, hidden| {
        let c = Rule::auto_ncp(hidden, hidden / 8).build(32).unwrap().connectivity().unwrap();
        Ltc { precision: Precision::Fast, ..Ltc::new(batch, steps, Arc::new(c)) }
    };
    let chosen = |p: &Ltc| choose(p, &DeviceProps::SM_90, None).unwrap();
    let (small, large) = (chosen(&wired(128, 64, 256)), chosen(&wired(32, 8, 1024)));
    assert!(small.levels.is_some_and(|l| l.row.is_some()) && small.levels_adjoint.is_some(), "{small}");
    assert!(small.recurrence.is_none() && small.to_string().contains("levels in a block: threads=640"), "{small}");
    let short = chosen(&wired(128, 8, 256));
    assert!(short.recurrence.is_some_and(|h| h.lone) && short.levels.is_none(), "{short}");
    assert!(large.levels.is_some() && large.levels_adjoint.is_some() && large.grid.is_none(), "{large}");
    assert!(large.to_string().contains("levels: steps=8") && large.to_string().contains("its adjoint"), "{large}");
    // Chunks are as long as their scratch is small.
    let long = chosen(&wired(128, 640, 256));
    assert!(long.levels_adjoint.is_some_and(|l| l.steps < 64 && l.steps > 4), "{long}");
    // What keeps unfolds has no levels, nor has one step of one row any use of them.
    assert!(chosen(&Ltc { save: Save::Store, ..wired(32, 8, 1024) }).levels.is_none());
    assert!(chosen(&wired(1, 1, 256)).levels.is_none());
    let asked = |p: &Ltc, name| choose(p, &DeviceProps::SM_90, Some(name));
    assert!(asked(&wired(3, 2, 256), "levelst2").is_err_and(|e| e.to_string().contains("kept unfolds")));
    let rebuilt = Ltc { save: Save::Recompute, ..wired(3, 9, 256) };
    assert!(asked(&rebuilt, "levelst2").unwrap().levels.is_some_and(|l| l.steps == 2 && l.row.is_none()));
    assert!(asked(&rebuilt, "levelsrowt2").unwrap().levels.is_some_and(|l| l.steps == 2 && l.row.is_some()));
    let wide = Ltc { save: Save::Recompute, ..wired(3, 9, 512) };
    assert!(asked(&wide, "levelsrow").is_err_and(|e| e.to_string().contains("shared memory")));
    assert!(asked(&problem(3, 2, 5, 40), "levels").unwrap_err().to_string().contains("without mixed memory"));
    assert!(asked(&Ltc { batch: 0, ..rebuilt.clone() }, "levels").unwrap_err().to_string().contains("empty"));
    // Where shared memory has room for it.
    for props in DeviceProps::FIXTURES {
        let room = props.shared_per_block_optin > 64 << 10;
        assert_eq!(choose(&rebuilt, &props, Some("levels")).is_ok(), room, "{}", props.arch());
    }
    // Few rows, or few synapses, have kernels that are sooner.
    let some = [(1, 32, 256), (256, 64, 64), (32, 32, 128)]
        .map(|(b, t, h)| chosen(&Ltc { save: Save::Recompute, ..wired(b, t, h) }));
    assert!(some.iter().all(|c| c.levels.is_none() && c.levels_adjoint.is_none()), "{some:?}");
}

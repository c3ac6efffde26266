//! Every synapse has one slot, every owner its pieces, and every part its share.

use super::*;
use crate::layers::ltc::entry::random_connectivity;

fn checked(s: &Synapses, g: &Grid) -> f64 {
    let shares = Shares::new(s, g);
    let (h, streams, warps) = (s.targets(), g.streams(), g.warps());
    let word = |list: &[u32], width: usize, n: usize, k: usize| list[n * width + k] as usize;
    assert_eq!(shares.blocks.len(), 4 * (g.blocks + 1));
    assert_eq!(shares.parts.len(), 2 * g.blocks * (warps + 1));
    let mut seen = vec![false; h * h];
    for block in 0..g.blocks {
        let [step, piece, owner] = [0, 1, 2].map(|k| word(&shares.blocks, 4, block, k));
        let [step_end, piece_end, owner_end] = [0, 1, 2].map(|k| word(&shares.blocks, 4, block + 1, k));
        let part = |w: usize, k: usize| word(&shares.parts, 2, block * (warps + 1) + w, k);
        assert_eq!((part(0, 0), part(0, 1), part(warps, 0), part(warps, 1)), (step, piece, step_end, piece_end));
        assert!(piece_end - piece <= owner_end - owner + warps);
        let share = (step_end - step).div_ceil(warps);
        let mut at = step;
        let mut pieces_of = vec![0; owner_end - owner];
        for w in 0..warps {
            assert_eq!(at, part(w, 0));
            assert!(part(w + 1, 0) - at <= share);
            for n in part(w, 1)..part(w + 1, 1) {
                let (steps, place) = (word(&shares.pieces, 2, n, 0), word(&shares.pieces, 2, n, 1));
                let first = word(&shares.owners, 2, owner + place, 1);
                assert_eq!(n, first + pieces_of[place], "pieces of an owner follow each other");
                pieces_of[place] += 1;
                let j = word(&shares.owners, 2, owner + place, 0);
                for slot in at * streams..(at + steps) * streams {
                    let (place, from) = (shares.at[slot], shares.from[slot] as usize);
                    assert!(from < h);
                    if place != NONE {
                        let expected = if g.adjoint { j * h + from } else { from * h + j };
                        assert_eq!(place as usize, expected);
                        assert!(!std::mem::replace(&mut seen[place as usize], true));
                    }
                }
                at += steps;
            }
        }
        assert_eq!(at, step_end);
        for (o, n) in pieces_of.iter().enumerate() {
            assert_eq!(word(&shares.owners, 2, owner + o, 1) + n, word(&shares.owners, 2, owner + o + 1, 1));
        }
    }
    assert_eq!(seen.iter().filter(|&&x| x).count(), s.len());
    // Wavefronts of a load of four rows, beside the fewest: four a warp.
    let banks = 8 / g.lanes;
    let wavefronts = |quarter: &[u16]| {
        (0..banks).map(|b| quarter.iter().filter(|&&f| f as usize % banks == b).count()).max().unwrap_or(0)
    };
    let quarters = shares.from.chunks(banks);
    let fewest = quarters.len().max(1) as f64;
    quarters.map(wavefronts).sum::<usize>() as f64 / fewest
}

#[test]
fn every_synapse_has_one_slot() {
    for (h, density, blocks, shape, groups) in [
        (1, 1.0, 1, (4, 1), 1),
        (33, 0.5, 3, (8, 2), 2),
        (70, 0.1, 9, (8, 4), 1),
        (130, 0.3, 7, (8, 1), 2),
        (300, 0.5, 16, (8, 2), 1),
    ] {
        let s = random_connectivity(2, h, density, 3).unwrap().recurrent;
        for adjoint in [false, true] {
            let g = Grid { blocks, groups, ..Grid::of(shape, adjoint) };
            let wavefronts = checked(&s, &g);
            // Lists with a synapse to spare for each bank read different ones.
            assert!(h < 300 || wavefronts < 1.15, "{wavefronts}");
        }
    }
    let none = Synapses::from_fn(5, 5, |i, j| i == 0 && j == 3).unwrap();
    checked(&none, &Grid { blocks: 2, ..Grid::of((8, 1), false) });
}

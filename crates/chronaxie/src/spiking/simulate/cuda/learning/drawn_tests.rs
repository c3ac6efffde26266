//! Synapses that are drawn again at each spike, on CUDA: the spikes and states of the CPU that stores them, bit for bit.

use super::super::{self as cuda, CudaEngine, Taken};
use super::tests::{on_devices, steps};
use super::*;
use crate::check::gpu::{Gpu, gpu};
use crate::spiking::connect::Redraw;
use crate::spiking::network::{Network, Rule, Storage};
use crate::spiking::simulate::learning_tests::run;
use crate::spiking::simulate::parts::tests::everything;
use crate::spiking::simulate::procedural_tests::{drawn, network, stored};
use crate::{DeviceProps, ErrorKind};

fn leak(network: Network) -> &'static Plan {
    Box::leak(Box::new(Plan::new(network).unwrap()))
}

fn engine(plan: &'static Plan, gpu: &Gpu, blocks: u32, cards: usize) -> LearningEngine<'static> {
    let config = Config::with_blocks(plan, blocks).unwrap();
    on_devices(plan, gpu, config, cards, plan.cells() as usize + 50)
}

/// Drawn alone, beside stored ones, beside changing ones of every rule, and in several networks side by side; one block and several, one
/// device and several, in pieces; and from the CPU's state of stored synapses in mid-run, and back.
#[test]
fn on_a_gpu_networks_of_drawn_synapses_have_the_cpus_spikes() {
    let Some(gpu) = gpu() else { return };
    let mut alone = network(24, 3.0, 9);
    alone.projections.truncate(6);
    let pair = Network::together(&[network(10, 2.0, 4), network(12, 2.0, 5)]).unwrap();
    let networks =
        [(alone, 150, false), (network(20, 9.0, 2), 150, false), (pair, 120, false), (everything(), 60, true)];
    for (k, (network, few, changes)) in networks.into_iter().enumerate() {
        let plan = leak(network);
        let again = leak(drawn(plan.network.clone()).0);
        let steps = steps(&gpu, few, 40_000);
        let want = stored(plan, &[steps]);
        assert!(want.0.len() > if steps > 1000 { 10_000 } else { 50 }, "only {} spikes", want.0.len());
        let cut = [1, 2, steps / 3, steps - 3 - steps / 3];
        let all = [(1, 1, &[steps][..]), (3, 1, &cut[..]), (2, 2, &[steps][..]), (1, 3, &cut[..])];
        for (way, (blocks, cards, pieces)) in all.into_iter().enumerate() {
            // Of one device and of several one way each, in turns, where each takes seconds.
            if steps < 1000 && way % 2 != k % 2 {
                continue;
            }
            let mut own = engine(again, &gpu, blocks, cards);
            assert_eq!((own.config.changes, own.config.drawn > 0), (changes, true), "{}", own.config);
            let got = run(&mut own, pieces);
            let common = got.iter().zip(&want.0).take_while(|(a, b)| a == b).count();
            let what = format!("{own:?}: {} spikes, not {}; {common} alike", got.len(), want.0.len());
            assert!(got == want.0, "{what}");
            assert_eq!(own.state().unwrap(), want.1, "{what}");
            assert_eq!((own.events(), own.synapses()), (want.2, want.3), "{what}");
            // From the middle of another's run: what is under way is drawn again.
            let half = stored(plan, &[steps / 2]);
            run(&mut own, &[3]);
            own.restore(&half.1).unwrap();
            let rest = run(&mut own, &[steps - steps / 2]);
            assert!(rest == want.0[half.0.len()..], "{what}: after a restore");
            assert_eq!(own.state().unwrap(), want.1, "{what}: after a restore");
        }
    }
}

/// Which engine takes it, by what is asked for and by the memory there is; what the resident kernel says of it.
#[test]
fn on_a_gpu_networks_of_drawn_synapses_are_taken_by_the_streaming_kernel() {
    let Some(gpu) = gpu() else { return };
    let devices = std::slice::from_ref(&gpu.device);
    let again = leak(drawn(network(10, 2.0, 4)).0);
    let e = CudaEngine::new(again, devices, &|_, _| ()).unwrap_err();
    assert_eq!(e.kind(), &ErrorKind::Unavailable);
    assert!(e.to_string().contains("projection E -> E: its synapses are drawn again at each spike"), "{e}");
    let chosen = cuda::engine(again, devices, &|_, _| ()).unwrap();
    assert_eq!(chosen.variant(), "grid");
    assert!(chosen.config().starts_with("streaming: "), "{}", chosen.config());
    assert!(
        chosen.config().contains("8 bytes a synapse, those of 6 projections drawn at each spike"),
        "{}",
        chosen.config()
    );
    assert_eq!(chosen.weights().unwrap().len(), 0);
    let table = chosen.table(0).unwrap();
    assert_eq!(table.source.len(), 40 * 40);
    // There is room for all of them.
    let mut auto = network(10, 2.0, 4);
    auto.projections.iter_mut().for_each(|p| p.storage = Storage::Auto);
    assert_eq!(cuda::engine(leak(auto), devices, &|_, _| ()).unwrap().variant(), "resident");
    // Too heavy, by what is drawn and what is stored together.
    let mut heavy = network(10, 2.0, 4);
    heavy.projections[0].weight = 800.0.into();
    heavy.projections[6].weight = 800.0.into();
    for (k, count) in [(0, 60_000), (6, 60_000)] {
        heavy.projections[k].rule = match k {
            0 => Rule::OutDegree { count, multapses: true },
            _ => Rule::InDegree { count, multapses: true },
        };
    }
    let want = cuda::engine(leak(heavy.clone()), devices, &|_, _| ()).map(drop).unwrap_err().to_string();
    let got = cuda::engine(leak(drawn(heavy).0), devices, &|_, _| ()).map(drop).unwrap_err().to_string();
    assert!(want.contains("the inputs of a cell can add up to") && got == want, "{got}\n{want}");
}

/// Twenty thousand million synapses: nothing holds them, and drawn again they take no more than the cells.
#[test]
fn memory_of_a_card_is_reckoned_without_drawn_synapses() {
    let mut n = Network::new(0.1, 1).unwrap();
    let lif = crate::spiking::models::find("lif_exp").unwrap();
    n.add(crate::spiking::network::Population::new("E", lif, 10_000_000));
    let mut p = network(10, 2.0, 4).projections[0].clone();
    p.rule = Rule::OutDegree { count: 2000, multapses: true };
    p.storage = Storage::Auto;
    n.projections.push(p);
    let (props, even) = (DeviceProps::SM_90, Layout::even(&n, 1));
    let plan = Plan::new(n).unwrap();
    let taken = |redraw| Taken::new(&plan, &props, &even, redraw).unwrap();
    let [kept, drawn] = [Redraw::Asked, Redraw::Possible].map(taken);
    assert!(matches!(kept, Taken::Resident(_)) && kept.bytes(&plan)[1] > 80e9 && !kept.fits(&plan, 80e9));
    let Taken::Streaming(config) = &drawn else { panic!("kept") };
    assert!(!config.keeps && config.drawn == 1 && !config.changes, "{config}");
    assert!(drawn.fits(&plan, 10e9), "{} GB", drawn.bytes(&plan)[1] / 1e9);
    assert!(config.to_string().ends_with("ring of 32 steps, synapses drawn at each spike"), "{config}");
    assert_eq!(plan.choose_redraw(|redraw| taken(redraw).fits(&plan, 80e9)), Redraw::Possible);
}

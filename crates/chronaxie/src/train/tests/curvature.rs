//! What KFAC sees of a network: which parameters, and their factors.

use super::layers::models;
use super::*;
use crate::optim::blocks::packed;
use crate::optim::kfac::reference::taken;
use crate::train::curvature::said;

const KFAC: &str = "optimizer = \"kfac\"\n";

fn slot_of(network: &Network, name: &str) -> Slot {
    network.optimizer_state().into_iter().find(|(n, _)| n == name).unwrap().1
}

/// Of one series of one step the gradient of a map is one outer product: A kron G is the square of it, whatever the layer. What is
/// tied to the wrong tensor, or scaled otherwise than the loss, is not.
#[test]
fn factors_of_one_step_are_the_square_of_its_gradient() {
    let scratch = Scratch::new("factors-one");
    let mut rng = Rng::new(5, 0);
    let rows: String = (0..8)
        .map(|i| format!("{i},{:.4},{:.4},{}\n", rng.normal(), rng.normal(), if i % 2 == 0 { "up" } else { "down" }))
        .collect();
    for name in ["train.csv", "test.csv"] {
        fs::write(scratch.file(name), format!("series,x,y,label\n{rows}")).unwrap();
    }
    let mut maps = 0;
    for model in models() {
        for pooling in ["last", "mean", "every"] {
            for sharing in ["expand", "reduce"] {
                let extra = format!("pooling = \"{pooling}\"\n{KFAC}[train.kfac]\nsharing = \"{sharing}\"\n");
                let (mut network, data) = network_of(&scratch, &config_of(&model, &extra), vec![3], 2);
                network.set_rates(&[0.0]).unwrap();
                network.learn(0, &data.train, &[1], None).unwrap();
                let kfac = network.kfac.clone().unwrap();
                let mut grad = vec![0f64; kfac.elements];
                for (_, slot) in network.parameters().to_vec() {
                    let values = network.banks.read_f32(&Slot { bank: 1, ..slot.clone() }).unwrap();
                    grad[slot.offset / 4..].iter_mut().zip(values).for_each(|(to, x)| *to = x.into());
                }
                let factors = network.banks.read_f32(&slot_of(&network, "state.factors")).unwrap();
                for (m, at) in kfac.maps.iter().zip(&kfac.places.maps) {
                    let (g, n) = (taken(m, &grad), m.inputs());
                    let of = |first: usize, i: usize, j: usize| f64::from(factors[first + packed(i.max(j)) + i.min(j)]);
                    let largest = g.iter().fold(0.0, |l: f64, x| l.max(x.abs())).powi(2);
                    assert!(largest > 0.0 || !model.contains("ltc"), "{model}: a gradient of zeros");
                    for e in 0..g.len() * g.len() {
                        let (i, j) = (e / g.len(), e % g.len());
                        let made = of(at.g, i / n, j / n) * of(at.a, i % n, j % n);
                        assert!(
                            (made - g[i] * g[j]).abs() <= 1e-5 * largest,
                            "{model} {pooling} {sharing}: {made} {}",
                            g[i] * g[j]
                        );
                    }
                    maps += 1;
                }
            }
        }
    }
    assert!(maps > 200, "{maps}");
}

/// Steps beyond a series' end and rows that no series fills have no part in the factors.
#[test]
fn longer_padding_and_empty_rows_change_no_factor() {
    let scratch = setup("factors-padding");
    for (pooling, sharing, terms) in [
        ("last", "expand", "batch"),
        ("mean", "reduce", "batch"),
        ("every", "expand", "positions"),
        ("every", "reduce", "positions"),
    ] {
        let model = "[model]\nlayer = \"mlstm\"\nheads = 2\noutputs = 6\n";
        let own = format!("[train.kfac]\nsharing = \"{sharing}\"\nterms = \"{terms}\"\n");
        let text = config_of(model, &format!("pooling = \"{pooling}\"\n{KFAC}{own}"));
        let of = |lengths: Vec<usize>, batch: usize| {
            let (mut network, data) = network_of(&scratch, &text, lengths, batch);
            network.set_rates(&[0.0]).unwrap();
            network.learn(0, &data.train, &[3, 0, 11, 7, 8], None).unwrap();
            network.banks.read_f32(&slot_of(&network, "state.factors")).unwrap()
        };
        let tight = of(vec![9], 5);
        for (lengths, batch) in [(vec![23], 5), (vec![9], 8), (vec![13], 16)] {
            let padded = of(lengths, batch);
            let norm = tight.iter().map(|x| x * x).sum::<f32>().sqrt();
            let apart = tight.iter().zip(&padded).map(|(x, y)| (x - y).powi(2)).sum::<f32>().sqrt();
            assert!(apart <= 4e-6 * norm, "{pooling} {sharing}: {apart} of {norm}");
        }
    }
}

/// The maps of each layer, in a sentence.
#[test]
fn it_is_said_which_parameters_are_solved() {
    let scratch = setup("factors-said");
    let of = |model: &str| {
        let (network, _) = network_of(&scratch, &config_of(&format!("[model]\n{model}"), KFAC), vec![9], 4);
        said(network.kfac.as_ref().unwrap(), network.parameters())
    };
    let ltc = of("hidden = 6\nunfolds = 2\n");
    assert!(ltc.starts_with("kfac: by Kronecker factors: head.weight, head.bias; by AdamW: layer."), "{ltc}");
    let pairs = |names: &[&str]| {
        names.iter().map(|n| format!("layer.{n}.weight, layer.{n}.bias")).collect::<Vec<_>>().join(", ")
    };
    let mlstm = of("layer = \"mlstm\"\nheads = 2\n");
    let want = pairs(&["q", "k", "v", "i", "f", "out"]);
    assert_eq!(mlstm, format!("kfac: by Kronecker factors: {want}, head.weight, head.bias; by AdamW: none"));
    let lru = of("layer = \"ssm\"\nprovider = \"lru\"\nhidden = 5\n");
    assert!(
        lru.contains("layer.v.weight, layer.v.bias") && lru.contains("by AdamW: layer.gates.nu, layer.gates.phi"),
        "{lru}"
    );
}

/// A run with the mLSTM, all of whose parameters are solved, goes on with the same bits.
#[test]
fn a_resumed_run_of_maps_alone_has_the_bits_of_one_that_was_never_stopped() {
    let scratch = setup("factors-resume");
    for (i, own) in ["ekfac = true\nfactor_frequency = 3\ninverse_frequency = 4\n", "damping_mode = \"factored\"\n"]
        .into_iter()
        .enumerate()
    {
        let model = "[model]\nlayer = \"mlstm\"\nheads = 2\noutputs = 6\n";
        let text = config_of(model, &format!("{KFAC}[train.kfac]\n{own}"));
        let out = |what: &str| format!("{what}-{i}");
        crate::pool::set_num_threads(2);
        train(&scratch, &text, &out("whole"), false, &Silent).unwrap();
        for stops in [vec![0], vec![4], vec![1, 2, 6]] {
            let name = out(&format!("stopped-{stops:?}"));
            for (k, &after) in stops.iter().enumerate() {
                train(&scratch, &text, &name, k > 0, &StopAfter::new(after)).unwrap_err();
            }
            crate::pool::set_num_threads(1 + stops.len() % 2);
            train(&scratch, &text, &name, true, &Silent).unwrap();
            assert!(super::model(&scratch, &name) == super::model(&scratch, &out("whole")), "{own} {stops:?}");
        }
    }
}

/// Three channels that are nearly the same: the class is in their small differences. Numbers within 1.73 of 0, of variance 1.
fn write_alike(path: &Path, count: usize, drawn: &mut u32) {
    let mut draw = || {
        *drawn += 1;
        let x = (12.9898 * f64::from(*drawn) + 1.0).sin() * 43758.5453;
        12f64.sqrt() * (x - x.floor() - 0.5)
    };
    let mut text = "series,a,b,c,label\n".to_owned();
    for series in 0..count {
        let (sign, label) = if series % 2 == 0 { (0.1, "up") } else { (-0.1, "down") };
        for _ in 0..3 + series % 5 {
            let common = draw();
            let apart = sign + 0.1 * draw();
            let third = common + 0.1 * draw();
            text.push_str(&format!("{series},{:.5},{:.5},{third:.5},{label}\n", common + apart, common - apart));
        }
    }
    fs::write(path, text).unwrap();
}

/// In as many steps the loss falls further than AdamW's, each at the best of three rates, as the mean of five seeds.
#[test]
fn where_channels_are_alike_kfac_falls_further_than_adamw() {
    let scratch = Scratch::new("factors-fall");
    let mut drawn = 0;
    write_alike(&scratch.file("train.csv"), 64, &mut drawn);
    write_alike(&scratch.file("test.csv"), 40, &mut drawn);
    for provider in ["mingru", "rglru"] {
        let model = format!("[model]\nlayer = \"ssm\"\nprovider = \"{provider}\"\nhidden = 6\n");
        let mean = |name: &str, rate: f64| {
            let own = if name == "kfac" { "[train.kfac]\ndamping = 0.1\nsharing = \"reduce\"\n" } else { "" };
            let last = |seed: u64| {
                let extra =
                    format!("optimizer = \"{name}\"\nweight_decay = 0\npooling = \"mean\"\nseed = {seed}\n{own}");
                let text = config_of(&model, &extra)
                    .replace("learning_rate = 0.03\n", &format!("learning_rate = {rate}\n"))
                    .replace("validation = 0.2", "validation = 0")
                    .replace("epochs = 3", "epochs = 5");
                let out = format!("{provider}-{name}-{rate}-{seed}");
                train(&scratch, &text, &out, false, &Silent).unwrap().train_loss
            };
            (1..=5).map(last).sum::<f64>() / 5.0
        };
        let [adamw, kfac] = ["adamw", "kfac"].map(|name| [0.03, 0.1, 0.3].map(|rate| mean(name, rate)));
        let least = |of: [f64; 3]| of.into_iter().fold(f64::INFINITY, f64::min);
        println!("{provider}: adamw {adamw:?}, kfac {kfac:?}");
        assert!(least(kfac) < 0.8 * least(adamw), "{provider}: adamw {adamw:?}, kfac {kfac:?}");
    }
}

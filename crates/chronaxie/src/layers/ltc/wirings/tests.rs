use super::*;
use crate::layers::ltc::{Ltc, init};
use std::sync::Arc;

/// What ncps 1.0.1 draws with NumPy 2.4.6.
struct Drawn {
    config: &'static str,
    /// D, H and the number of outputs.
    sizes: [usize; 3],
    /// Recurrent and sensory.
    synapses: [usize; 2],
    /// The sum of the polarities.
    polarity: [i64; 2],
    /// FNV-1a, 64 bits, of the matrix as bytes, row-major by source.
    hashes: [u64; 2],
}

const DRAWN: &[Drawn] = &[
    Drawn {
        config: "type=fully_connected,units=8",
        sizes: [5, 8, 8],
        synapses: [64, 40],
        polarity: [36, 22],
        hashes: [0xc09f_cc22_d1d6_eb05, 0xb9c9_3057_cde2_7457],
    },
    Drawn {
        config: "type=fully_connected,units=16,output_dim=4,erev_init_seed=7,self_connections=false",
        sizes: [3, 16, 4],
        synapses: [240, 48],
        polarity: [106, 18],
        hashes: [0xc220_4666_cb5e_39cb, 0xc1c0_6395_5446_477f],
    },
    Drawn {
        config: "type=random,units=10,sparsity_level=0.25",
        sizes: [6, 10, 10],
        synapses: [75, 45],
        polarity: [17, 15],
        hashes: [0x2dbf_6562_4916_462a, 0x581d_8383_4bef_2708],
    },
    Drawn {
        config: "type=random,units=128,output_dim=4,sparsity_level=0.5",
        sizes: [64, 128, 4],
        synapses: [8192, 4096],
        polarity: [2624, 1376],
        hashes: [0xea2f_04cf_735f_9867, 0x6f18_50d1_e1d6_aab9],
    },
    Drawn {
        config: "type=random,units=101,sparsity_level=0.99,random_seed=3",
        sizes: [100, 101, 101],
        synapses: [102, 101],
        polarity: [36, 23],
        hashes: [0xb06f_d9bc_184e_217f, 0xf8fc_abc8_a025_ccee],
    },
    Drawn {
        config: "type=random,units=7,sparsity_level=0.9",
        sizes: [4, 7, 7],
        synapses: [5, 3],
        polarity: [5, 1],
        hashes: [0x8e69_da49_05e7_0aec, 0xdad1_28ba_d8cf_c888],
    },
    Drawn {
        config: "type=random,units=6,sparsity_level=0",
        sizes: [0, 6, 6],
        synapses: [36, 0],
        polarity: [18, 0],
        hashes: [0x6dbc_7385_3ae3_44b3, 0xcbf2_9ce4_8422_2325],
    },
    Drawn {
        config: "type=ncp,inter_neurons=20,command_neurons=10,motor_neurons=5,sensory_fanout=4,inter_fanout=5,recurrent_command_synapses=6,motor_fanin=4,seed=22222",
        sizes: [7, 35, 5],
        synapses: [128, 32],
        polarity: [-10, 6],
        hashes: [0x04ef_4ec2_0fb5_f6f9, 0x2a8b_30f2_17fd_ff1d],
    },
    Drawn {
        config: "type=ncp,inter_neurons=12,command_neurons=8,motor_neurons=4,sensory_fanout=4,inter_fanout=4,recurrent_command_synapses=8,motor_fanin=6,seed=1",
        sizes: [2, 24, 4],
        synapses: [80, 13],
        polarity: [2, 3],
        hashes: [0xb0d0_7571_1dd1_8b51, 0xf386_7faf_5d9a_2fc4],
    },
    Drawn {
        config: "type=ncp,inter_neurons=40,command_neurons=3,motor_neurons=1,sensory_fanout=1,inter_fanout=1,recurrent_command_synapses=2,motor_fanin=1,seed=99",
        sizes: [5, 44, 1],
        synapses: [45, 40],
        polarity: [1, 4],
        hashes: [0xbea5_3130_44a8_bbee, 0xa592_a606_6a64_cc11],
    },
    Drawn {
        config: "type=ncp,inter_neurons=6,command_neurons=6,motor_neurons=9,sensory_fanout=6,inter_fanout=6,recurrent_command_synapses=0,motor_fanin=6,seed=0",
        sizes: [1, 21, 9],
        synapses: [90, 6],
        polarity: [-2, -2],
        hashes: [0xb04f_4ab1_6e4f_44ed, 0x7786_b985_10fa_7b55],
    },
    Drawn {
        config: "type=ncp,inter_neurons=30,command_neurons=12,motor_neurons=2,sensory_fanout=2,inter_fanout=1,recurrent_command_synapses=5,motor_fanin=3,seed=4294967295",
        sizes: [3, 44, 2],
        synapses: [53, 30],
        polarity: [-7, 0],
        hashes: [0x1e60_f1e0_3534_2582, 0x3ef2_2a6a_08bf_9121],
    },
    Drawn {
        config: "type=auto_ncp,units=16,output_size=4,sparsity_level=0.5",
        sizes: [32, 16, 4],
        synapses: [30, 128],
        polarity: [4, 10],
        hashes: [0x349a_bf37_b81b_9dfb, 0xfaf1_dcc1_84ff_6cfd],
    },
    Drawn {
        config: "type=auto_ncp,units=64,output_size=8,sparsity_level=0.5",
        sizes: [32, 64, 8],
        synapses: [483, 544],
        polarity: [-29, 0],
        hashes: [0x9cbf_4d32_147c_7fc4, 0x6dd4_3ebe_b216_8315],
    },
    Drawn {
        config: "type=auto_ncp,units=64,output_size=8,sparsity_level=0.8",
        sizes: [32, 64, 8],
        synapses: [181, 192],
        polarity: [-19, -4],
        hashes: [0x9749_e050_1f76_85d6, 0x5328_cd03_780d_0c75],
    },
    Drawn {
        config: "type=auto_ncp,units=128,output_size=16,sparsity_level=0.5",
        sizes: [32, 128, 16],
        synapses: [1891, 1088],
        polarity: [11, 40],
        hashes: [0x65e1_10cf_8074_0532, 0xc6d7_0f53_b5cd_0e2d],
    },
    Drawn {
        config: "type=auto_ncp,units=256,output_size=16,sparsity_level=0.75",
        sizes: [32, 256, 16],
        synapses: [3888, 1152],
        polarity: [-30, -10],
        hashes: [0x3e0b_8dcd_b173_67e3, 0xdfb2_d880_5368_78b9],
    },
    Drawn {
        config: "type=auto_ncp,units=19,output_size=3,sparsity_level=0.9,seed=5",
        sizes: [1, 19, 3],
        synapses: [18, 10],
        polarity: [0, 0],
        hashes: [0x5195_b877_d5a5_12b1, 0xd216_77ce_1ba8_5053],
    },
];

fn rule(config: &str) -> Rule {
    Rule::from_config(config.split(',').map(|pair| pair.split_once('=').unwrap())).unwrap()
}

fn hash(adjacency: &[i8]) -> u64 {
    let step = |h: u64, &x: &i8| (h ^ u64::from(x as u8)).wrapping_mul(0x0100_0000_01b3);
    adjacency.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[test]
fn wirings_are_those_of_ncps_to_the_bit() {
    for d in DRAWN {
        let w = rule(d.config).build(d.sizes[0]).unwrap();
        let sum = |a: &[i8]| a.iter().map(|&x| i64::from(x)).sum::<i64>();
        assert_eq!([w.inputs, w.units, w.output_dim], d.sizes, "{}", d.config);
        assert_eq!([w.synapse_count(), w.sensory_synapse_count()], d.synapses, "{}", d.config);
        assert_eq!([sum(&w.adjacency), sum(&w.sensory_adjacency)], d.polarity, "{}", d.config);
        assert_eq!([hash(&w.adjacency), hash(&w.sensory_adjacency)], d.hashes, "{}", d.config);
    }
}

#[test]
fn configs_round_trip() {
    let more =
        ["type=bernoulli,units=5,density=0.1,sensory_density=2", "type=bernoulli,units=3,seed=18446744073709551615"];
    for config in DRAWN.iter().map(|d| d.config).chain(more) {
        let rule = rule(config);
        let written = rule.to_config();
        let again = Rule::from_config(written.iter().map(|(k, v)| (*k, v.as_str()))).unwrap();
        assert_eq!(again, rule);
        assert_eq!(again.build(3).unwrap(), rule.build(3).unwrap());
        // Every key that was given is written with its value.
        for pair in config.split(',') {
            let (key, value) = pair.split_once('=').unwrap();
            assert!(written.iter().any(|(k, v)| *k == key && v == value), "{config}: {pair}");
        }
    }
    assert_eq!(rule("type=auto_ncp,units=16,output_size=4"), Rule::auto_ncp(16, 4));
    assert_eq!(rule("type=random,units=16,sparsity_level=0.3"), Rule::random(16, 0.3));
    assert_eq!(rule("type=fully_connected,units=16"), Rule::fully_connected(16));
    assert_eq!(rule("type=bernoulli,units=16"), Rule::bernoulli(16, 0.5, 0));
}

#[test]
fn bad_configs_are_refused() {
    for (config, want) in [
        ("units=3", "wiring: type is missing"),
        ("type=dense", "wiring: type `dense` is not one of fully_connected, random, ncp, auto_ncp, bernoulli"),
        ("type=random", "wiring random: units is missing"),
        ("type=random,units=-3", "wiring random: units = -3 is not a valid value for units"),
        (
            "type=auto_ncp,units=9,output_size=2,sparsity=0.5",
            "wiring auto_ncp: key `sparsity` is given twice or not one of units, output_size, sparsity_level, seed",
        ),
    ] {
        let pairs = config.split(',').map(|pair| pair.split_once('=').unwrap());
        assert_eq!(Rule::from_config(pairs).unwrap_err().to_string(), want);
    }
}

#[test]
fn values_out_of_range_are_named() {
    let ncp = |counts: [usize; 7]| {
        let [inter_neurons, command_neurons, motor_neurons, sensory_fanout, inter_fanout, recurrent, motor_fanin] =
            counts;
        let recurrent_command_synapses = recurrent;
        let seed = 1;
        Rule::Ncp(Ncp {
            inter_neurons,
            command_neurons,
            motor_neurons,
            sensory_fanout,
            inter_fanout,
            recurrent_command_synapses,
            motor_fanin,
            seed,
        })
    };
    let full =
        |units, output_dim| Rule::FullyConnected { units, output_dim, erev_init_seed: 1, self_connections: true };
    let auto = |sparsity_level| Rule::AutoNcp { units: 16, output_size: 4, sparsity_level, seed: 1 };
    for (rule, want) in [
        (Rule::auto_ncp(16, 14), "wiring auto_ncp: output_size = 14 must be less than units - 2, where units = 16"),
        (auto(0.05), "wiring auto_ncp: sparsity_level = 0.05 is not in [0.1, 1]"),
        (auto(f64::NAN), "wiring auto_ncp: sparsity_level = NaN is not in [0.1, 1]"),
        (Rule::random(4, 1.0), "wiring random: sparsity_level = 1 is not in [0, 1)"),
        (Rule::random(4, -0.5), "wiring random: sparsity_level = -0.5 is not in [0, 1)"),
        (Rule::bernoulli(4, -0.5, 1), "wiring bernoulli: density = -0.5 is not 0 or more"),
        (full(3, 9), "wiring: output_dim = 9 is more than units = 3"),
        (full(1 << 20, 1), "wiring: 1048576 units and 3 inputs have more than 2147483647 possible synapses"),
        (ncp([5, 4, 3, 6, 1, 1, 1]), "wiring ncp: sensory_fanout = 6 is more than the 5 inter neurons"),
        (ncp([5, 4, 3, 1, 5, 1, 1]), "wiring ncp: inter_fanout = 5 is more than the 4 command neurons"),
        (ncp([5, 4, 3, 1, 1, 1, 5]), "wiring ncp: motor_fanin = 5 is more than the 4 command neurons"),
        (ncp([0, 4, 3, 0, 1, 1, 1]), "wiring ncp: inter_neurons = 0, but at least one is needed"),
        (
            ncp([usize::MAX, 4, 3, 1, 1, 1, 1]),
            "wiring: 18446744073709551615 units and 3 inputs have more than 2147483647 possible synapses",
        ),
    ] {
        assert_eq!(rule.build(3).unwrap_err().to_string(), want);
    }
}

#[test]
fn layers_of_an_ncp_feed_the_next_one_only() {
    let w = rule("type=auto_ncp,units=64,output_size=8,sparsity_level=0.8").build(32).unwrap();
    assert_eq!((w.kind(7), w.kind(8), w.kind(29), w.kind(30)), {
        use NeuronKind::{Command, Inter, Motor};
        (Motor, Command, Command, Inter)
    });
    assert_eq!(NeuronKind::Command.name(), "command");
    for i in 0..64 {
        for j in (0..64).filter(|j| w.adjacency[i * 64 + j] != 0) {
            let ends = (w.kind(i).name(), w.kind(j).name());
            assert!(matches!(ends, ("inter" | "command", "command") | ("command", "motor")), "{ends:?}");
        }
    }
    let reaches_inter_only = |at: usize| w.sensory_adjacency[at] == 0 || w.kind(at % 64) == NeuronKind::Inter;
    assert!((0..32 * 64).all(reaches_inter_only));
    // Every neuron has a synapse, so that the wiring becomes lists and a layer's first parameters.
    let c = w.connectivity().unwrap();
    assert_eq!((c.recurrent.len(), c.sensory.len()), (w.synapse_count(), w.sensory_synapse_count()));
    let p = Ltc::new(1, 1, Arc::new(c)).build().unwrap();
    let t = init::initial_parameters(&p, &w.adjacency, &w.sensory_adjacency, 1).unwrap();
    assert!(t.get("erev").unwrap().data.iter().zip(w.mask()).all(|(&e, m)| e.abs() == f64::from(m)));
}

#[test]
fn a_neuron_without_a_synapse_is_refused_when_lists_are_made() {
    let w = Rule::random(40, 0.99).build(1).unwrap();
    let e = w.connectivity().unwrap_err().to_string();
    assert!(e.starts_with("ltc: neuron ") && e.ends_with(" of 40 has no synapse"), "{e}");
    let e = Rule::auto_ncp(9, 2).build(0).unwrap().connectivity().unwrap_err().to_string();
    assert!(e.ends_with(" of 9 has no synapse"), "{e}");
}

#[test]
fn bernoulli_wirings_have_their_density_and_reach_every_neuron() {
    let rule = Rule::Bernoulli { units: 200, output_dim: 3, density: 0.5, sensory_density: 0.1, seed: 5 };
    let w = rule.build(100).unwrap();
    // Standard errors of the counts: 100 and 42; of the excitatory share: 0.0028. Five of each.
    assert!((w.synapse_count() as f64 - 20_000.0).abs() < 500.0, "{}", w.synapse_count());
    assert!((w.sensory_synapse_count() as f64 - 2_000.0).abs() < 212.0, "{}", w.sensory_synapse_count());
    let excitatory = w.adjacency.iter().filter(|&&s| s == 1).count() as f64 / w.synapse_count() as f64;
    assert!((excitatory - 0.8).abs() < 0.014, "{excitatory}");
    assert_eq!(w, rule.build(100).unwrap());
    assert_ne!(w.adjacency, Rule::bernoulli(200, 0.5, 6).build(100).unwrap().adjacency);

    let none = Rule::bernoulli(50, 0.0, 1).build(20).unwrap();
    assert_eq!((none.synapse_count(), none.sensory_synapse_count()), (50, 50));
    let columns = |a: &[i8]| (0..50).all(|j| a.chunks(50).filter(|row| row[j] != 0).count() == 1);
    assert!(columns(&none.adjacency) && columns(&none.sensory_adjacency));
    assert_eq!(Rule::bernoulli(50, 1.0, 1).build(20).unwrap().synapse_count(), 2500);
    assert_eq!(Rule::bernoulli(0, 0.5, 1).build(20).unwrap().synapse_count(), 0);
    assert_eq!(Rule::bernoulli(4, 0.5, 1).build(0).unwrap().sensory_synapse_count(), 0);
}

#[test]
fn wirings_of_the_users_own_are_checked() {
    let w = Wiring::new(1, 2, 1, vec![0, 1, -1, 0], vec![1, 0]).unwrap();
    assert_eq!((w.synapse_count(), w.sensory_mask(), w.kind(1)), (2, vec![1.0, 0.0], NeuronKind::Inter));
    assert_eq!(w.connectivity().unwrap().recurrent.source_of, [1, 0]);
    let message = |a: &[i8], s: &[i8]| Wiring::new(1, 2, 1, a.to_vec(), s.to_vec()).unwrap_err().to_string();
    assert_eq!(message(&[0; 3], &[0; 2]), "wiring: 3 elements of adjacency do not match [sources, units] = (2, 2)");
    assert_eq!(message(&[0; 4], &[0, 2]), "wiring: sensory_adjacency[0, 1] = 2 is not one of -1, 0, 1");
}

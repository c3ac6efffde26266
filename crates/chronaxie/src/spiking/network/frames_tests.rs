//! Frames: which cell gets what and when, on every engine on the CPU, and how they are refused.

use crate::config::Config;
use crate::spiking::Plan;
use crate::spiking::network::read::{Settings, read, read_with};
use crate::spiking::network::{Edge, Files, Rule};
use crate::spiking::simulate::{CpuEngine, Engine, Reference};
use crate::{Result, pool};

/// A box of 3 x 2 x 2 sites from (1, 0, 0, 5) on, in the order z, y, x.
const BOX: &str = "schema = 1\n[simulation]\ndt = 0.5\n[[population]]\nname = \"V1\"\nmodel = \"lif_delta\"\n\
    box = { x = [1, 3], y = [0, 1], z = [0, 1], w = [5, 5] }\nparameters = { tau_m = 10.0, E_L = -65.0, V_reset = -65.0, t_ref = 0.0 }\n";

fn with(drive: &str, values: Vec<f64>) -> Result<Settings> {
    let config = Config::parse(
        &format!("{BOX}[[drive]]\ntarget = \"V1\"\nkind = \"frames\"\nfile = \"<f>\"\n{drive}"),
        "net.toml",
    )?;
    let files = Files::beside(&config).with("<f>", vec![("frames".into(), values)]);
    read_with(&config, &files)
}

fn edges(s: &Settings) -> Vec<(u32, u32, f32)> {
    let Rule::Edges(edges) = &s.network.projections[0].rule else { panic!("frames are edges") };
    edges.iter().map(|e: &Edge| (e.source, e.target, e.weight)).collect()
}

#[test]
fn elements_go_to_the_cells_at_their_places_and_frames_to_their_steps() {
    // Two frames of 2 x 2: of x = 2, 3 and y = 0, 1; element [0, 1] of the second is 0.
    let s = with(
        "shape = [2, 2, 2]\naxes = \"xy\"\norigin = [2, 0]\nlayer = { z = 1 }\nweight = 0.5\nhold = 1.0\nstart = 2.0\nrepeat = 2",
        vec![1.0, 2.0, 3.0, 4.0, -5.0, 0.0, 7.0, 8.0],
    );
    let s = s.unwrap();
    let of = |x: u32, y: u32| 6 + 3 * y + x - 1;
    let want = [
        (0, of(2, 0), 0.5),
        (0, of(2, 1), 1.0),
        (0, of(3, 0), 1.5),
        (0, of(3, 1), 2.0),
        (1, of(2, 0), -2.5),
        (1, of(3, 0), 3.5),
        (1, of(3, 1), 4.0),
    ];
    let mut found = edges(&s);
    found.sort_by_key(|e| (e.0, want.iter().position(|w| (w.0, w.1) == (e.0, e.1))));
    assert_eq!(found, want);
    let frames = &s.network.populations[1];
    assert_eq!((frames.name.as_str(), frames.size), ("V1 frames", 2));
    let shown = [(4, 0), (5, 0), (6, 1), (7, 1), (8, 0), (9, 0), (10, 1), (11, 1)];
    assert_eq!(frames.replay.as_ref().unwrap().as_slice(), shown);
    // Another drive of the same cells has frames of its own.
    let text = format!(
        "{BOX}[[drive]]\ntarget = \"V1\"\nkind = \"frames\"\nfile = \"<f>\"\nweight = 1\nhold = 1\n[[drive]]\ntarget = \"V1\"\n\
         kind = \"frames\"\nfile = \"<f>\"\nweight = -1\nhold = 2\n"
    );
    let config = Config::parse(&text, "net.toml").unwrap();
    let files = Files::beside(&config).with("<f>", vec![("frames".into(), vec![1.0; 12])]);
    let both = read_with(&config, &files).unwrap().network;
    let names: Vec<&str> = both.populations.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["V1", "V1 frames", "V1 frames 2"]);
    assert_eq!(both.projections.iter().map(|p| (p.source, p.target)).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    Plan::new(both).unwrap();
    // By index: one frame, and frames.
    let twelve: Vec<f64> = (0..12).map(f64::from).collect();
    let s = with("weight = 1\nhold = 5.0", twelve.clone()).unwrap();
    assert_eq!(edges(&s), (1..12).map(|i| (0, i, i as f32)).collect::<Vec<_>>());
    let s = with("shape = [1, 12]\nweight = 1\nhold = 5.0", twelve).unwrap();
    assert_eq!((edges(&s).len(), s.network.populations[1].replay.as_ref().unwrap().len()), (11, 10));
}

/// Cells that show frames neither die nor are born, and their numbers do not mutate.
#[test]
fn frames_have_no_life_cycle() {
    let twelve: Vec<f64> = (0..12).map(f64::from).collect();
    let n = with("weight = 1\nhold = 5.0\n[lifecycle]\nmax_age = 50.0\nmutation_std_weights = 0.5", twelve)
        .unwrap()
        .network;
    let life = n.lifecycle.as_ref().unwrap();
    assert_eq!((&life.populations[..], &life.mutation_std_weights[..]), (&[0][..], &[0.0][..]));
    Plan::new(n).unwrap();
}

/// Against the equation, `V' = E_L + (V - E_L) e^(-dt / tau) + w` while a frame is shown, two steps later; with the same spikes on
/// every engine, and a checkpoint between two frames.
#[test]
fn jumps_are_those_of_the_equation_on_every_engine() {
    let values = vec![0.25, 0.0, 0.5, 0.125, 0.75, 1.0];
    let text =
        "shape = [2, 3]\naxes = \"x\"\norigin = [1]\nweight = 0.5\nhold = 4.0\nstart = 0.5\nrepeat = 3\ndelay = 1.0";
    let s = with(text, values.clone()).unwrap();
    let plan = Plan::new(s.network).unwrap();
    let mut engine = CpuEngine::new(&plan, &|_, _| ()).unwrap();
    let mut v = [-65.0f64; 3];
    let mut spikes = Vec::new();
    for step in 0..60u64 {
        engine.advance(1, &mut spikes).unwrap();
        for (x, v) in v.iter_mut().enumerate() {
            // Shown from step 1 on, 8 steps each; felt two steps later.
            let shown = step.checked_sub(3).filter(|s| *s < 48).map_or(0.0, |s| values[(s as usize / 8 % 2) * 3 + x]);
            *v = -65.0 + (*v + 65.0) * (-0.5f64 / 10.0).exp() + 0.5 * shown;
            for cell in [x, x + 3, x + 6, x + 9] {
                let own = f64::from(engine.cell(0, cell as u32).unwrap()[0]);
                // The state that is stepped is relative to E_L.
                let own = if own > -40.0 { own - 65.0 } else { own };
                assert!((own - *v).abs() < 2e-5, "step {step}, cell {cell}: {own}, not {v}");
            }
        }
    }
    // Such that cells fire.
    let s = with(&text.replace("weight = 0.5", "weight = 16.0"), values).unwrap();
    let plan = Plan::new(s.network).unwrap();
    let mut all = Vec::new();
    Reference::in_f32(&plan).unwrap().advance(60, &mut all).unwrap();
    let own = all.iter().filter(|s| s.cell < 12).count();
    assert!(own > 40 && all.len() - own == 48, "{own} of {}", all.len());
    for shards in [1, 3] {
        pool::set_num_threads(shards);
        let engine = || CpuEngine::with_shards(&plan, shards, &|_, _| ()).unwrap();
        let (mut first, mut again, mut spikes) = (engine(), engine(), Vec::new());
        first.advance(13, &mut spikes).unwrap();
        again.restore(&first.state().unwrap()).unwrap();
        again.advance(47, &mut spikes).unwrap();
        assert_eq!(spikes, all, "{shards} shards");
    }
}

/// A value as a current is the DC current of the same size, whatever the step and the synapses' time constants.
#[test]
fn frames_as_currents_come_to_the_potential_of_the_same_dc() {
    for (model, dt, tau) in
        [("lif_exp", 0.1, 0.5), ("lif_exp", 0.5, 2.0), ("lif_alpha", 0.1, 0.5), ("lif_delta", 0.1, 0.0)]
    {
        let synapses =
            if tau > 0.0 { format!("tau_syn_ex = {tau}, tau_syn_in = {}", 3.0 * tau) } else { String::new() };
        let text = format!(
            "schema = 1\n[simulation]\ndt = {dt}\n[[population]]\nname = \"A\"\nmodel = \"{model}\"\nsize = 2\n\
             parameters = {{ {synapses} }}\n[[drive]]\ntarget = \"A\"\nkind = \"frames\"\nfile = \"<f>\"\ncurrent = 100\nhold = 300\n"
        );
        let config = Config::parse(&text, "net.toml").unwrap();
        let files = Files::beside(&config).with("<f>", vec![("frames".into(), vec![2.0, -3.0])]);
        let plan = Plan::new(read_with(&config, &files).unwrap().network).unwrap();
        let mut engine = CpuEngine::new(&plan, &|_, _| ()).unwrap();
        engine.advance((250.0 / dt) as u64, &mut Vec::new()).unwrap();
        for (cell, current) in [(0, 200.0), (1, -300.0)] {
            let v = f64::from(engine.cell(0, cell).unwrap()[0]);
            let v = if v < -40.0 { v + 65.0 } else { v };
            // 40 MOhm; what a step brings at once is seen a little at its end.
            let (want, ripple) = (0.04 * current, 0.04 * f64::abs(current) * dt / 10.0);
            assert!((v - want).abs() < ripple, "{model}, {dt} ms: {v} mV of {want}");
        }
    }
}

#[test]
fn wrong_frames_are_refused_with_field_line_and_values() {
    let values: Vec<f64> = (0..12).map(f64::from).collect();
    let says = |drive: &str, values: &[f64]| match with(drive, values.to_vec())
        .and_then(|s| Plan::new(s.network).map(|_| ()))
    {
        Ok(()) => panic!("{drive} is taken"),
        Err(e) => e.to_string(),
    };
    for (drive, want) in [
        ("weight = 1\ncurrent = 1\nhold = 5.0", "unknown key drive[0].weight"),
        ("hold = 5.0", "table [drive[0]] lacks the required key weight (a finite number)"),
        ("weight = 1", "table [drive[0]] lacks the required key hold"),
        ("weight = 1\nhold = 0.1", "net.toml:14: drive[0].hold is 0.1 ms, which is less than the step of 0.5 ms"),
        ("weight = 1\nhold = 1\nshape = [5]", "drive[0].shape is [5], but <f> has 12 numbers"),
        (
            "weight = 1\nhold = 1\nshape = [4, 3]",
            "drive[0].file has frames of 3 numbers for the 12 cells of \"V1\"; with axes they go by places",
        ),
        (
            "weight = 1\nhold = 1\nshape = [1, 1, 12]",
            "an array of shape [1, 1, 12], which is not [cell] or [frame, cell]",
        ),
        ("weight = 1\nhold = 1\naxes = \"xy\"", "of shape [12], which is not one of 2 axes, or of frames of these"),
        ("weight = 1\nhold = 1\naxes = \"xx\"", "drive[0].axes is \"xx\", but axes are some of x, y, z and w"),
        (
            "weight = 1\nhold = 1\naxes = \"xyz\"\nshape = [3, 2, 2]\norigin = [0, 1]",
            "drive[0].origin has 2 numbers for 3 axes",
        ),
        ("weight = 1\nhold = 1\naxes = \"x\"\norigin = [4]", "of shape [12] from [4] on lie at no cell of \"V1\""),
        ("weight = 1\nhold = 1\nlayer = { z = 0 }", "drive[0].layer is of places"),
        ("weight = 1\nhold = 1\naxes = \"x\"\nlayer = { v = 0 }", "unknown key drive[0].layer.v"),
        (
            "weight = 1e300\nhold = 1",
            "drive[0].weight 1e300 times 1 (frame 0, element 1) is beyond the range of single precision",
        ),
        (
            "weight = 1\nhold = 1e13",
            "<f>: a list of 20000000000000 steps of frames, and of their numbers, needs 320000.0 GB",
        ),
        ("weight = 1\nhold = 1e18", "are more than a simulation has"),
        ("weight = 1\nhold = 1\ndelay = 0.1", "drive[0].delay is 0.1 ms, which is less than the step of 0.5 ms"),
        ("weight = 1\nhold = 1\nrate = 3", "unknown key drive[0].rate"),
    ] {
        let e = says(drive, &values);
        assert!(e.contains(want), "{drive}: {e}");
    }
    assert!(says("weight = 1\nhold = 1", &[1.0, f64::NAN]).contains("<f>: frames[1] is NaN"));
    // A weight that is lost beside a large one is refused, as in any projection.
    let lost = format!(
        "{BOX}[[projection]]\nsource = \"V1\"\ntarget = \"V1\"\nrule = \"one_to_one\"\nweight = 10000\ndelay = 1\n"
    );
    let config = Config::parse(
        &format!("{lost}[[drive]]\ntarget = \"V1\"\nkind = \"frames\"\nfile = \"<f>\"\nweight = 0.01\nhold = 1"),
        "net.toml",
    );
    let config = config.unwrap();
    let files = Files::beside(&config).with("<f>", vec![("frames".into(), vec![1.0; 12])]);
    let e = Plan::new(read_with(&config, &files).unwrap().network).unwrap_err().to_string();
    assert!(e.contains("projection V1 frames -> V1: weights of 0.0099999") && e.contains("sets their unit"), "{e}");
    assert!(e.contains("or say weight_bits = 32"), "{e}");
    let config = Config::parse(
        &format!(
            "{lost}[[drive]]\ntarget = \"V1\"\nkind = \"frames\"\nfile = \"<f>\"\nweight = 0.01\nhold = 1\nweight_bits = 32"
        ),
        "net.toml",
    );
    Plan::new(read_with(&config.unwrap(), &files).unwrap().network).unwrap();
    // Cells without places, a list of targets, a variant that is not the run's.
    let plain = "schema = 1\n[[population]]\nname = \"A\"\nmodel = \"lif_exp\"\nsize = 3\n[[population]]\nname = \"P\"\n\
        model = \"poisson\"\nsize = 3\n[[population]]\nname = \"C\"\nmodel = \"lif_cond\"\nsize = 3\n[[drive]]\nkind = \"frames\"\nfile = \"<f>\"\nweight = 1\nhold = 1\n";
    for (more, want) in [
        ("target = \"A\"\naxes = \"x\"", "the cells of \"A\" have none (box, places)"),
        ("target = \"C\"", "drive[0].current is of currents, which inputs of lif_cond are not; give a weight"),
        ("target = [\"A\", \"P\"]", "must be one population"),
        ("target = \"P\"", "whose cells of poisson take no input"),
    ] {
        let plain =
            if want.starts_with("drive[0].current") { plain.replace("weight", "current") } else { plain.into() };
        let config = Config::parse(&format!("{plain}{more}"), "net.toml").unwrap();
        let files = Files::beside(&config).with("<f>", vec![("frames".into(), vec![1.0; 3])]);
        let e = read_with(&config, &files).unwrap_err().to_string();
        assert!(e.contains(want), "{e}");
    }
    let other = with("variant = \"dark\"\nweight = 1\nhold = 1", values.clone()).unwrap();
    assert_eq!(other.network.populations.len(), 1);
    let e = with("weight = 1\nhold = 1\n[simulation]", values).map(|_| ());
    assert!(e.is_err());
}

/// A matrix in an `.npz`, an `.npy` and a `.csv` file beside the description.
#[test]
fn files_of_each_kind_hold_the_same_frames() {
    let folder = std::env::temp_dir().join(format!("chronaxie-frames-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (shape, numbers) = ([2usize, 3], [1.0f32, 0.0, 2.5, -3.0, 4.0, 0.5]);
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    let header = format!(
        "{:<117}\n",
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", shape[0], shape[1])
    );
    let npy = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), &bytes].concat();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("f.npy", &npy);
    write("f.csv", b"1, 0, 2.5\n-3,4,0.5\n");
    write("bad.csv", b"1, 0, 2.5\n-3,four,0.5\n");
    write("short.csv", b"1, 0, 2.5\n-3,4\n");
    write("none.csv", b"");
    write("cut.npy", &npy[..npy.len() - 1]);
    write("f.txt", b"1");
    let read_file = |file: &str| {
        let text = format!(
            "{BOX}[[drive]]\ntarget = \"V1\"\nkind = \"frames\"\nfile = \"{file}\"\naxes = \"yx\"\norigin = [0, 1]\nweight = 1\nhold = 5\n"
        );
        read(&Config::parse(&text, folder.join("net.toml")).unwrap())
    };
    let want = edges(&read_file("f.npy").unwrap());
    assert_eq!(want.len(), 10);
    assert_eq!(edges(&read_file("f.csv").unwrap()), want);
    for (file, says) in [
        ("bad.csv", "bad.csv:2: \"four\" is no finite number"),
        ("short.csv", "short.csv:2: 2 numbers after rows of 3"),
        ("none.csv", "holds no number"),
        ("cut.npy", "cut.npy: 23 bytes do not hold 6 values of type <f4"),
        ("f.txt", "the name ends in none of .npz, .npy and .csv"),
        ("nowhere.npz", "cannot read"),
    ] {
        let e = read_file(file).unwrap_err().to_string();
        assert!(e.contains(says), "{file}: {e}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

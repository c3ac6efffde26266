//! Models against an integrator of order five that chooses its steps (Dormand and Prince, J. Comp. Appl. Math. 6:19, 1980) by an
//! error of 1e-10 a step, and finds when a threshold is crossed: of the same equations, written once more.

use super::{Cells, defaults, find, initial};

type State = [f64; 4];

const STAGES: [&[f64]; 7] = [
    &[],
    &[1.0 / 5.0],
    &[3.0 / 40.0, 9.0 / 40.0],
    &[44.0 / 45.0, -56.0 / 15.0, 32.0 / 9.0],
    &[19_372.0 / 6561.0, -25_360.0 / 2187.0, 64_448.0 / 6561.0, -212.0 / 729.0],
    &[9017.0 / 3168.0, -355.0 / 33.0, 46_732.0 / 5247.0, 49.0 / 176.0, -5103.0 / 18_656.0],
    &[35.0 / 384.0, 0.0, 500.0 / 1113.0, 125.0 / 192.0, -2187.0 / 6784.0, 11.0 / 84.0],
];
/// The step less that of order four.
const ERROR: [f64; 7] =
    [71.0 / 57_600.0, 0.0, -71.0 / 16_695.0, 71.0 / 1920.0, -17_253.0 / 339_200.0, 22.0 / 525.0, -1.0 / 40.0];

fn moved(s: &State, h: f64, weights: &[f64], slopes: &[State]) -> State {
    std::array::from_fn(|i| s[i] + h * weights.iter().zip(slopes).map(|(w, k)| w * k[i]).sum::<f64>())
}

/// One step, and its error over what is allowed.
fn step(f: &dyn Fn(&State) -> State, s: &State, h: f64) -> (State, f64) {
    let mut slopes = Vec::new();
    let mut new = *s;
    for weights in STAGES {
        new = moved(s, h, weights, &slopes);
        slopes.push(f(&new));
    }
    let off = moved(&[0.0; 4], h, &ERROR, &slopes);
    let worst = off.iter().zip(&new).map(|(e, x)| e.abs() / (1e-10 * (1.0 + x.abs()))).fold(0.0, f64::max);
    (new, worst)
}

/// When the first variable crosses `threshold` from below until `end`, and the state then; `reset` is applied there.
fn exact(
    f: &dyn Fn(&State) -> State,
    mut s: State,
    end: f64,
    threshold: f64,
    reset: Option<&dyn Fn(State) -> State>,
) -> (Vec<f64>, State) {
    let (mut now, mut h, mut spikes) = (0.0f64, 1e-3f64, Vec::new());
    while end - now > 1e-12 {
        h = h.min(end - now);
        let (new, error) = step(f, &s, h);
        if error > 1.0 {
            h *= (0.9 * error.powf(-0.2)).max(0.2);
            continue;
        }
        if s[0] < threshold && new[0] >= threshold {
            let (mut low, mut high) = (0.0, h);
            for _ in 0..60 {
                let half = 0.5 * (low + high);
                if step(f, &s, half).0[0] >= threshold { high = half } else { low = half }
            }
            spikes.push(now + high);
            if let Some(reset) = reset {
                (s, now, h) = (reset(step(f, &s, high).0), now + high, 1e-3);
                continue;
            }
        }
        (s, now) = (new, now + h);
        h *= (0.9 * error.max(1e-6).powf(-0.2)).min(4.0);
    }
    (spikes, s)
}

/// The law and the body of a model under a constant current: when they fire, in ms, and their states at the end.
fn of_model(name: &str, set: &[(&str, f64)], h: f64, end: f64) -> [(Vec<f64>, Vec<f64>); 2] {
    let model = find(name).unwrap();
    let mut p = defaults(model);
    for (name, value) in set {
        p[model.parameters().iter().position(|x| x.name == *name).unwrap()] = *value;
    }
    let mut law = initial(model, &p);
    let mut cells = Cells::new(model, &p, h, &law);
    let none = vec![vec![0.0; super::CELLS]; model.ports().len()];
    let (mut laws, mut bodies) = (Vec::new(), Vec::new());
    for n in 1..=(end / h).round() as u32 {
        let time = f64::from(n) * h;
        laws.extend(model.law(&p, h, &mut law, &vec![0.0; model.ports().len()]).then_some(time));
        bodies.extend((cells.step(&none, false)[0] == 1).then_some(time));
    }
    let body = cells.states.iter().map(|s| f64::from(s[0])).collect();
    [(laws, law), (bodies, body)]
}

/// A spike is in the step in which the potential crosses its threshold: no error adds up, since nothing is reset. The state after
/// 100 ms and seven spikes is off by 0.2 uV in steps of 0.05 ms, by a sixteenth of that in halves.
#[test]
fn the_squid_axon_is_that_of_an_adaptive_integrator() {
    let by = |x: f64| if x.abs() < 1e-7 { 1.0 + x / 2.0 } else { x / -(-x).exp_m1() };
    let f = |&[v, m, h, n]: &State| {
        let r = v + 65.0;
        [
            10.0 - 120.0 * m.powi(3) * h * (v - 50.0) - 36.0 * n.powi(4) * (v + 77.0) - 0.3 * (v + 54.4),
            by((v + 40.0) / 10.0) * (1.0 - m) - 4.0 * (-r / 18.0).exp() * m,
            0.07 * (-r / 20.0).exp() * (1.0 - h) - h / (1.0 + (-(v + 35.0) / 10.0).exp()),
            0.1 * by((v + 55.0) / 10.0) * (1.0 - n) - 0.125 * (-r / 80.0).exp() * n,
        ]
    };
    let (spikes, end) = exact(&f, [-65.0, 0.0529, 0.5961, 0.3177], 100.0, 0.0, None);
    assert_eq!(spikes.len(), 7);
    let mut errors = Vec::new();
    for (h, most) in [(0.05, 4e-4), (0.025, 3e-5)] {
        let [(laws, law), (bodies, body)] = of_model("hodgkin_huxley", &[("I_e", 10.0)], h, 100.0);
        for times in [&laws, &bodies] {
            assert_eq!(times.len(), 7);
            let late = times.iter().zip(&spikes).map(|(a, b)| a - b);
            assert!(late.clone().all(|late| (-1e-3..h + 1e-3).contains(&late)), "{h}: {:?}", late.collect::<Vec<_>>());
        }
        for (k, (x, want)) in law.iter().zip(end).enumerate() {
            assert!((x - want).abs() < most, "{h}: variable {k}: {x}, not {want}");
        }
        // f32 keeps four millionths of a potential, and errors in the phase of a spike move what follows.
        assert!((body[0] - end[0]).abs() < 0.02, "{h}: {}, not {}", body[0], end[0]);
        errors.push((law[0] - end[0]).abs());
    }
    assert!((8.0..32.0).contains(&(errors[0] / errors[1])), "{errors:?}");
}

/// A spike's reset waits for the end of its step, so each comes up to three steps later than the one before; with finer steps by so
/// much less.
#[test]
fn izhikevichs_cells_are_those_of_an_adaptive_integrator() {
    for (a, c, d, least) in [(0.02, -65.0, 8.0, 5), (0.1, -65.0, 2.0, 20), (0.02, -50.0, 2.0, 15)] {
        let f = |&[v, u, ..]: &State| [0.04 * v * v + 5.0 * v + 150.0 - u, a * (0.2 * v - u), 0.0, 0.0];
        let reset = |s: State| [c, s[1] + d, 0.0, 0.0];
        let (spikes, _) = exact(&f, [c, -13.0, 0.0, 0.0], 200.0, 30.0, Some(&reset));
        assert!(spikes.len() >= least, "{} spikes", spikes.len());
        for h in [0.1, 0.0125] {
            for (times, _) in of_model("izhikevich", &[("a", a), ("c", c), ("d", d), ("I_e", 10.0)], h, 200.0) {
                assert!(times.len() + 1 >= spikes.len() && times.len() <= spikes.len(), "{} spikes", times.len());
                for (k, (time, want)) in times.iter().zip(&spikes).enumerate() {
                    let late = time - want;
                    assert!((-1e-3..3.0 * h * (k + 1) as f64).contains(&late), "{h}: spike {k} at {time}, not {want}");
                }
            }
        }
    }
}

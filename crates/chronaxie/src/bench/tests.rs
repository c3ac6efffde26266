//! What is timed, and what is not.

use super::*;
use crate::check::toy::{Fault, Toy};

fn events(fault: Fault, options: &Options) -> (Vec<Event>, Summary) {
    let mut all = Vec::new();
    let target = [Target::Ready(Device::Cpu)];
    let summary = run(&[&Toy(fault)], &target, options, &Silent, &mut |e| all.push(e.clone())).unwrap();
    (all, summary)
}

#[test]
fn every_pass_of_every_case_is_timed() {
    let options = Options {
        cases: Some(vec!["B4_T256".parse().unwrap()]),
        seconds: 0.02,
        provenance: Provenance { date: "2026-01-02".to_owned(), driver: Some("13.0".to_owned()), ..Default::default() },
        ..Options::default()
    };
    let (all, summary) = events(Fault::None, &options);
    assert_eq!(summary, Summary { timed: 4, ..Summary::default() }, "{all:?}");
    let records: Vec<Record> =
        all.into_iter().map(|e| if let Event::Timed(r) = e { *r } else { panic!("{e:?}") }).collect();
    let passes: Vec<_> = records.iter().map(|r| r.pass.as_str()).collect();
    assert_eq!(passes, ["forward", "backward", "forward_backward", "step"]);
    for r in &records {
        assert!(r.min_ms <= r.median_ms && r.median_ms <= r.max_ms && r.min_ms > 0.0 && r.runs >= 3, "{r:?}");
        assert!(r.roofline_fraction > 0.0 && r.max_error.is_some_and(|e| e < 1e-5), "{r:?}");
        assert_eq!((r.clock.as_str(), r.backend.as_str(), r.variant.as_str()), ("call", "cpu", "loops"));
        assert_eq!((r.driver.as_ref(), r.date.as_str(), r.dtype.as_str()), (None, "2026-01-02", "f32"));
    }
    let both = &records[2];
    assert_eq!(both.bytes, records[0].bytes + records[1].bytes);
    let gb = both.bytes as f64 / (both.median_ms * 1e-3) / 1e9;
    assert!((both.gb_per_s - gb).abs() <= 1e-9 * gb);
}

#[test]
fn what_fails_its_check_is_not_timed() {
    for (fault, says) in
        [(Fault::Wrong, "forward.y"), (Fault::WrongGradient, "backward.grad_a"), (Fault::Random, "bits_repeat")]
    {
        let (all, summary) = events(fault, &Options { seconds: 0.01, ..Options::default() });
        assert_eq!(summary, Summary { refused: 1, ..Summary::default() }, "{fault:?}: {all:?}");
        let Event::Refused { reason, .. } = &all[0] else { panic!("{all:?}") };
        assert!(reason.contains("its check fails") && reason.contains(says), "{reason}");
    }
    let (_, summary) = events(Fault::Unavailable, &Options::default());
    assert_eq!(summary, Summary { skipped: 1, ..Summary::default() });
}

#[test]
fn a_case_of_the_users_own_may_be_refused_with_a_sentence() {
    let options = Options { cases: Some(vec!["B4_Q1".parse().unwrap()]), ..Options::default() };
    let (all, _) = events(Fault::None, &options);
    let [Event::Refused { reason, case, .. }] = &all[..] else { panic!("{all:?}") };
    assert!(case == "B4_Q1" && reason.contains("axis Q is not one of B, T"), "{reason}");
}

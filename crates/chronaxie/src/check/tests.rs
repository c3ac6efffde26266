//! `check` finds nothing in a right operation and every fault in a wrong one.

use super::toy::{Fault, Toy};
use super::*;
use crate::progress::Silent;

fn records(fault: Fault) -> (Vec<Record>, Summary) {
    // The number of threads is one for the process, and one fault is about it.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut all = Vec::new();
    let target = [Target::Ready(Device::Cpu)];
    let summary = run(&[&Toy(fault)], &target, &Options::default(), &Silent, &mut |r| all.push(r.clone()))
        .expect("nobody interrupts");
    (all, summary)
}

#[test]
fn a_right_operation_passes_every_quantity() {
    let (all, summary) = records(Fault::None);
    let bad: Vec<_> = all.iter().filter(|r| r.status != Status::Passed).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert_eq!((summary.passed, summary.failed, summary.skipped), (all.len(), 0, 0));
    for quantity in [
        "forward.y",
        "backward.grad_x",
        "backward.grad_a",
        "backward.grad_h0",
        "step.state",
        "written",
        "canaries",
        "bits_repeat",
        "bits_threads",
        "strided",
        "inputs_untouched",
        "step.canaries",
    ] {
        assert_eq!(all.iter().filter(|r| r.quantity == quantity).count(), 4, "{quantity} once a case");
    }
    assert!(all.iter().all(|r| r.quantity != "forward.sums"), "saved tensors are not compared");
    let y = all.iter().find(|r| r.quantity == "forward.y").unwrap();
    assert_eq!((y.family.as_str(), y.case.as_str(), y.backend.as_str()), ("toy", "B3_T7", "cpu"));
    assert_eq!((y.dtype.as_str(), y.precision.as_str(), y.metric.as_str()), ("f32", "exact", "relative_frobenius"));
    assert!(y.error.unwrap() > 0.0 && y.tolerance == Some(1e-5));
}

#[test]
fn every_fault_is_found_by_its_quantity() {
    for (fault, quantity, says) in [
        (Fault::Wrong, "forward.y", "worst at [2, 6]"),
        (Fault::WrongGradient, "backward.grad_a", "worst at "),
        (Fault::LeavesNan, "forward.y", "3 of 21 elements are not finite; the first at [0, 6]: NaN"),
        (Fault::LeavesNan, "written", "3 elements of y were never written"),
        (Fault::LeavesSaved, "written", "3 elements of sums were never written"),
        (Fault::Scratch, "canaries", "behind the scratch region `partial`"),
        (Fault::Output, "canaries", "4 bytes behind y were overwritten"),
        (Fault::Input, "inputs_untouched", "of the input a have changed"),
        (Fault::Random, "bits_repeat", "forward.y in 1 of 84 bytes"),
        (Fault::Threads, "bits_threads", "forward.y in 1 of 84 bytes"),
        (Fault::Strides, "strided", "forward.y"),
        (Fault::ReadsScratch, "forward.y", "not finite"),
        (Fault::Panics, "run", "panicked: on purpose"),
    ] {
        let (all, summary) = records(fault);
        assert!(summary.failed > 0, "{fault:?}");
        let r = all.iter().find(|r| r.case == "B3_T7" && r.quantity == quantity);
        let r = r.unwrap_or_else(|| panic!("{fault:?}: no {quantity}"));
        assert_eq!(r.status, Status::Failed, "{fault:?}: {r:?}");
        assert!(r.reason.contains(says), "{fault:?}: {}", r.reason);
    }
}

#[test]
fn faults_do_not_spread() {
    let (all, _) = records(Fault::Scratch);
    let failed: Vec<_> = all.iter().filter(|r| r.status == Status::Failed && r.case == "B3_T7").collect();
    let names: Vec<_> = failed.iter().map(|r| r.quantity.as_str()).collect();
    // The strided runs look at the canaries too.
    assert_eq!(names, ["canaries", "strided", "step.canaries"]);
}

#[test]
fn what_is_missing_is_skipped_with_a_reason() {
    let (all, summary) = records(Fault::Unavailable);
    assert_eq!((summary.passed, summary.failed), (0, 0));
    assert!(all.iter().all(|r| r.status == Status::Skipped && r.reason == "toy: no kernels for cpu"), "{all:?}");

    let missing = Target::Missing { backend: "cuda:0".to_owned(), reason: "no driver".to_owned() };
    let mut all = Vec::new();
    let summary = run(&[&Toy(Fault::None)], &[missing], &Options::default(), &Silent, &mut |r| all.push(r.clone()));
    assert_eq!(summary.unwrap().skipped, 4);
    assert!(all.iter().all(|r| r.reason == "no driver" && r.backend == "cuda:0" && r.dtype == "f32"), "{all:?}");
}

#[test]
fn a_case_that_does_not_exist_fails_with_a_sentence() {
    let options = Options { cases: Some(vec!["B2_Q3".parse().unwrap()]), ..Options::default() };
    let mut all = Vec::new();
    let target = [Target::Ready(Device::Cpu)];
    let summary = run(&[&Toy(Fault::None)], &target, &options, &Silent, &mut |r| all.push(r.clone())).unwrap();
    assert_eq!(summary.failed, 1);
    assert!(all[0].reason.contains("axis Q is not one of B, T"), "{}", all[0].reason);
}

#[test]
fn an_interruption_stops_the_work() {
    struct Stop;
    impl Progress for Stop {
        fn interrupted(&self) -> bool {
            true
        }
    }
    let target = [Target::Ready(Device::Cpu)];
    let e = run(&[&Toy(Fault::None)], &target, &Options::default(), &Stop, &mut |_| {}).unwrap_err();
    assert_eq!(e.exit_code(), 130);
}

#[test]
fn targets_are_selected_by_name() {
    assert!(Target::select("gpu").unwrap_err().to_string().contains("`gpu` is not one of all, auto"));
    let (all, _) = Target::select("all").unwrap();
    assert_eq!(all.iter().map(Target::name).collect::<Vec<_>>(), ["cpu", "cuda:0"]);
    assert_eq!(Target::select("cpu").unwrap().0.len(), 1);
}

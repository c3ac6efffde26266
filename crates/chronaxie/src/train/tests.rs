//! Properties of training that hold whatever the layer.

use super::adamw::AdamWOp;
use super::head::LinearHeadOp;
use crate::check::{self, Options, Status, Target};
use crate::progress::Silent;
use crate::{Device, op::Op};

/// What `chronaxie check` would say of the entries of this module on the CPU.
#[test]
fn entries_agree_with_their_laws_on_the_cpu() {
    let entries: [&dyn Op; 2] = [&LinearHeadOp, &AdamWOp];
    let mut failures = Vec::new();
    let summary = check::run(&entries, &[Target::Ready(Device::Cpu)], &Options::default(), &Silent, &mut |r| {
        if r.status == Status::Failed {
            failures.push(format!("{r:?}"));
        }
    })
    .unwrap();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(summary.passed > 100, "{summary:?}");
}

//! The one list of entries. Tests, `check`, `bench`, `profile` and `compile` iterate it; a new operation is its folder
//! and its line here.

use crate::bench::Family;
use crate::cuda::Specialisation;
use crate::op::Op;
use crate::{Error, Result};

/// Every operation.
pub fn entries() -> &'static [&'static dyn Op] {
    &[
        #[cfg(feature = "layers")]
        &crate::layers::ltc::entry::LtcEntry,
        #[cfg(feature = "layers")]
        &crate::layers::cfc::entry::CfcEntry,
        #[cfg(feature = "layers")]
        &crate::layers::ssm::LinearScanOp,
        #[cfg(feature = "layers")]
        &crate::layers::ssm::LinearScanComplexOp,
        #[cfg(feature = "layers")]
        &crate::layers::ssm::SelectiveScanOp,
        #[cfg(feature = "layers")]
        &crate::layers::ssm::SelectiveStateUpdateOp,
        #[cfg(feature = "layers")]
        &crate::layers::ssm::AdaptiveThetaOp,
        #[cfg(feature = "layers")]
        &crate::layers::ssm::AdaptiveUnitaryOp,
        #[cfg(feature = "layers")]
        &crate::layers::mlstm::entry::MlstmOp(crate::layers::mlstm::Gate::Exponential),
        #[cfg(feature = "layers")]
        &crate::layers::mlstm::entry::MlstmOp(crate::layers::mlstm::Gate::Sigmoid),
        #[cfg(feature = "layers")]
        &crate::layers::mlstm::entry::MlstmParallelOp,
        #[cfg(feature = "layers")]
        &crate::layers::mlstm::ladder::LadderOp,
        #[cfg(feature = "layers")]
        &crate::layers::mlstm::step::MlstmStepOp,
        #[cfg(feature = "layers")]
        &crate::layers::ssm::SsmGatesOp,
        #[cfg(feature = "layers")]
        &crate::layers::dense::DenseOp,
        #[cfg(feature = "optim")]
        &crate::optim::inverse_root::InverseRootOp { fourth: false },
        #[cfg(feature = "optim")]
        &crate::optim::inverse_root::InverseRootOp { fourth: true },
        #[cfg(feature = "optim")]
        &crate::optim::eigh::EighOp,
        #[cfg(feature = "optim")]
        &crate::optim::shampoo::ShampooOp,
        #[cfg(feature = "optim")]
        &crate::optim::soap::SoapOp,
        #[cfg(feature = "optim")]
        &crate::optim::muon::MuonOp,
        #[cfg(feature = "optim")]
        &crate::optim::kfac::KfacOp,
        #[cfg(feature = "optim")]
        &crate::optim::kfac::KfacFactorsOp,
        #[cfg(feature = "optim")]
        &crate::optim::per_sample::GhostNormsOp,
        #[cfg(feature = "train")]
        &crate::train::head::LinearHeadOp,
        #[cfg(feature = "train")]
        &crate::train::adamw::AdamWOp,
    ]
}

/// What each family launches on a GPU, by its name; simulations and their analysis, which are no operations, come last.
pub fn kernels() -> Vec<(&'static str, Vec<Specialisation>)> {
    let entries = entries().iter().map(|e| (e.name(), e.specialisations()));
    entries
        .chain([
            #[cfg(feature = "spiking")]
            ("simulate", crate::spiking::simulate::cuda::specialisations()),
            #[cfg(feature = "spiking")]
            ("analyze", crate::spiking::analysis::cuda::specialisations()),
        ])
        .collect()
}

/// All that `bench` times: every operation, and the families of spiking networks.
pub fn families() -> Vec<Family<'static>> {
    let operations = entries().iter().map(|op| Family::Op(*op));
    #[cfg(feature = "spiking")]
    let operations = operations.chain(crate::spiking::bench::families().iter().map(|f| Family::Whole(f)));
    operations.collect()
}

/// The family of that name, or an error with the names there are and the nearest of them.
///
/// # Errors
/// `Config`.
pub fn family(name: &str) -> Result<Family<'static>> {
    let all = families();
    let names: Vec<_> = all.iter().map(Family::name).collect();
    all.iter().copied().find(|f| f.name() == name).ok_or_else(|| unknown(name, &names))
}

/// The entry of that name, or an error with the names there are and the nearest of them.
pub fn find(name: &str) -> Result<&'static dyn Op> {
    let names: Vec<_> = entries().iter().map(|e| e.name()).collect();
    entries().iter().copied().find(|e| e.name() == name).ok_or_else(|| unknown(name, &names))
}

/// That `name` is none of `names`, and which of them is the nearest.
pub fn unknown(name: &str, names: &[&str]) -> Error {
    let near = crate::config::nearest(name, names.iter().copied());
    let hint = near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
    Error::config(format!("family `{name}` is not one of {}{hint}", names.join(", ")))
}

#[cfg(all(test, feature = "train"))]
mod tests {
    use super::*;
    use crate::Device;
    use crate::op::{CaseSet, PlanOptions};

    #[test]
    fn every_family_refuses_a_variant_that_it_has_not() {
        for e in entries() {
            let case = e.cases(CaseSet::Check).remove(0);
            let problem = e.problem(&case).unwrap();
            let options = PlanOptions { variant: Some("abacus".to_owned()), ..PlanOptions::default() };
            let Err(why) = problem.plan(&Device::Cpu, &options) else { panic!("{} takes any variant", e.name()) };
            assert!(why.to_string().contains("variant `abacus`"), "{}: {why}", e.name());
        }
    }
}

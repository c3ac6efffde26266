//! CfC on CUDA: which kernels, with what memory, in which order.
#![allow(unsafe_code)]

mod launch;
mod net;
mod pieces;
mod tune;

pub use launch::CudaPlan;
pub use tune::{Config, choose};

use crate::cuda::{Archs, Constant, KernelSource, Specialisation};
use crate::kernels;
use tune::{ROWS, THREADS};

const FORWARD: KernelSource = KernelSource::embedded("layers/cfc/cuda/forward.cu", include_str!("forward.cu"));
const ADJOINT: KernelSource = KernelSource::embedded("layers/cfc/cuda/adjoint.cu", include_str!("adjoint.cu"));
const PRODUCTS: KernelSource = KernelSource::embedded("layers/cfc/cuda/products.cu", include_str!("products.cu"));
const HEADERS: &[(&str, &str)] = &[("cfc.cuh", include_str!("cfc.cuh")), kernels::WALK];

const PRODUCT_ENTRIES: &[&str] = &["cfc_pack", "cfc_rows", "cfc_operands", "cfc_sums", "cfc_close"];

fn specialisation(source: KernelSource, entries: &[&'static str], rows: usize, fast: bool) -> Specialisation {
    Specialisation {
        headers: HEADERS,
        constants: vec![
            ("kRows", Constant::Int(rows as i32)),
            ("kThreads", Constant::Int(THREADS as i32)),
            ("kPieces", Constant::Int(pieces::MOST as i32)),
            ("kFast", Constant::Bool(fast)),
        ],
        archs: if fast { Archs::AtLeast(75) } else { Archs::All },
        ..Specialisation::new(source, entries)
    }
}

/// The products, which know neither rows of a block nor special functions.
fn products() -> Specialisation {
    specialisation(PRODUCTS, PRODUCT_ENTRIES, 1, false)
}
fn forward(rows: usize, fast: bool) -> Specialisation {
    specialisation(FORWARD, &["cfc_forward"], rows, fast)
}
fn adjoint(rows: usize, fast: bool) -> Specialisation {
    specialisation(ADJOINT, &["cfc_adjoint"], rows, fast)
}

/// What is compiled ahead: everything there is.
pub fn specialisations() -> Vec<Specialisation> {
    let both = [false, true].into_iter().flat_map(|fast| ROWS.map(|rows| (rows, fast)));
    both.flat_map(|(rows, fast)| [forward(rows, fast), adjoint(rows, fast)]).chain([products()]).collect()
}

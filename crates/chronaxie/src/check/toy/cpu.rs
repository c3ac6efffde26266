//! The toy's loops, right and wrong.
#![allow(unsafe_code)]

use super::{Fault, ToyPlan};
use crate::op::{Args, Pass};
use crate::{Result, View, pool};
use std::sync::atomic::{AtomicU32, Ordering};

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Rows of a view of any strides.
fn rows(view: &View<'_>, ignore_strides: bool) -> Result<Vec<Vec<f32>>> {
    let (b, t) = (view.shape()[0], view.shape()[1]);
    let (si, sj) = if ignore_strides { (t as isize, 1) } else { (view.strides()[0], view.strides()[1]) };
    let p = view.as_ptr::<f32>()?;
    // SAFETY: the view vouches for every index within its shape, and row-major reading reaches no further.
    Ok((0..b as isize).map(|i| (0..t as isize).map(|j| unsafe { *p.offset(i * si + j * sj) }).collect()).collect())
}

impl ToyPlan {
    pub(super) fn run_on_cpu(&self, pass: Pass, args: &mut Args<'_, '_>) -> Result<()> {
        let (t, fault) = (self.t, self.fault);
        // SAFETY: the block is this layout's and the region is carved once.
        let partial = unsafe { self.layout.carve::<f32>(&args.scratch, self.partial) }?;
        if fault != Fault::ReadsScratch {
            partial.fill(0.0);
        }
        if fault == Fault::Scratch && !partial.is_empty() {
            // SAFETY: wrong on purpose, but inside the block: the gap behind the region is there in a check.
            unsafe { *partial.as_mut_ptr().add(partial.len()) = 1.0 };
        }
        assert!(fault != Fault::Panics, "on purpose");
        if pass == Pass::Step {
            let u = args.inputs[0].as_slice::<f32>()?;
            for (s, u) in args.outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(u) {
                *s = 0.5 * *s + u;
            }
            return Ok(());
        }
        let x = rows(&args.inputs[0], fault == Fault::Strides)?;
        let (a, h0) = (args.inputs[1].as_slice::<f32>()?, args.inputs[2].as_slice::<f32>()?);
        if pass == Pass::Backward {
            let (sums, gy) = (args.inputs[3].as_slice::<f32>()?, args.inputs[4].as_slice::<f32>()?);
            for (i, x) in x.iter().enumerate() {
                let (mut gs, mut ga) = (0.0f32, 0.0f32);
                for (j, x) in x.iter().enumerate().rev() {
                    let k = i * t + j;
                    gs += gy[k] * sums[k];
                    args.outputs[0].as_mut_slice::<f32>()?[k] = a[i] * gy[k] + gs;
                    ga += x * gy[k];
                }
                args.outputs[1].as_mut_slice::<f32>()?[i] = if fault == Fault::WrongGradient { ga * 1.01 } else { ga };
                args.outputs[2].as_mut_slice::<f32>()?[i] = gs;
            }
            return Ok(());
        }
        if fault == Fault::Input && self.b > 0 {
            // SAFETY: wrong on purpose; the address is that of memory which the caller owns.
            unsafe { *args.inputs[1].as_ptr::<f32>()?.cast_mut() = 7.0 };
        }
        let (y, sums) = args.outputs.split_at_mut(1);
        let (y, sums) = (y[0].as_mut_slice::<f32>()?, sums[0].as_mut_slice::<f32>()?);
        for (i, x) in x.iter().enumerate() {
            let mut s = h0[i] + partial[i];
            for (j, x) in x.iter().enumerate() {
                let k = i * t + j;
                s += x;
                if fault != Fault::LeavesSaved || j + 1 < t {
                    sums[k] = s;
                }
                if fault != Fault::LeavesNan || j + 1 < t {
                    y[k] = a[i] * x + 0.5 * s * s;
                }
            }
        }
        if let Some(last) = y.last_mut() {
            match fault {
                Fault::Wrong => *last *= 1.01,
                // One unit in the last place: within every tolerance, but other bits.
                Fault::Random => *last = f32::from_bits(last.to_bits() ^ (CALLS.fetch_add(1, Ordering::Relaxed) & 1)),
                Fault::Threads => *last = f32::from_bits(last.to_bits() ^ (pool::num_threads() as u32 & 1)),
                // SAFETY: wrong on purpose, but inside the block: check leaves a guard behind each tensor.
                Fault::Output => unsafe { *y.as_mut_ptr().add(y.len()) = 1.0 },
                _ => {}
            }
        }
        Ok(())
    }
}

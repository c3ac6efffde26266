//! How the copy engine finds tokens, for the kernels by chains.

use super::{Call, Mlstm};
use chronaxie_runtime::cuda::{Boxes, CudaDevice, TensorMap};

/// `Maps` of hopper_chains.cuh: of q, k, v, grad_h and h, and a bit for each that has one.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
pub(super) struct Maps {
    of: [TensorMap; 5],
    which: i64,
    rest: [i64; 7],
}

/// The places in `TOKENS` of the tensors in [`Maps`].
const MAPPED: [usize; 5] = [0, 1, 2, 6, 5];

impl Maps {
    /// How the copy engine finds chunks of 64 tokens. A tensor that no map can have is brought by threads.
    pub(super) fn of(p: &Mlstm, device: &CudaDevice, call: &Call) -> Self {
        let mut maps = Self::default();
        if p.batch * p.heads * p.steps == 0 {
            return maps;
        }
        for (nth, (of, width)) in MAPPED.into_iter().zip([p.dqk, p.dqk, p.dv, p.dv, p.dv]).enumerate() {
            let tokens = call.tokens[of];
            let [b, h, t, _] = tokens.strides;
            let sizes = [width, p.steps, p.heads, p.batch];
            // Along an axis of one nobody goes anywhere.
            let stride = |size: usize, s: i64| if size == 1 { 16 } else { u64::try_from(2 * s).unwrap_or(u64::MAX) };
            let strides = [stride(p.steps, t), stride(p.heads, h), stride(p.batch, b)];
            let boxes = Boxes { address: tokens.data, sizes: sizes.map(|n| n as u64), strides, rows: 64 };
            // Forward nobody reads h.
            let read = of != 5 || call.tokens[6].data != 0;
            if let (true, Ok(map)) = (read && tokens.is_plain(), TensorMap::new(device, &boxes)) {
                maps.of[nth] = map;
                maps.which |= 1 << nth;
            }
        }
        maps
    }
}

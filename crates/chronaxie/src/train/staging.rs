//! Batches on their way to the device.

use super::bank::{Banks, Layout};
use super::batches::Examples;
use crate::cuda::PinnedBuffer;
use crate::rng::Rng;
use crate::{Device, Dtype, Result};

/// Normal noise on the values of a batch.
pub(super) struct Noise {
    pub(super) deviation: f64,
    pub(super) rng: Rng,
}

/// How a batch gets to where the passes read it.
pub(super) enum Staging {
    /// It is laid out there.
    Host,
    /// It is laid out in pinned memory and copied while the host goes on. Two buffers: one is filled while the other's
    /// copy waits for its turn on the stream.
    Pinned { buffers: [PinnedBuffer; 2], next: usize },
}

impl Staging {
    pub(super) fn new(device: &Device, bytes: usize) -> Result<Self> {
        Ok(match device {
            Device::Cpu => Self::Host,
            Device::Cuda(d) => {
                Self::Pinned { buffers: [PinnedBuffer::alloc(d, bytes)?, PinnedBuffer::alloc(d, bytes)?], next: 0 }
            }
        })
    }
    /// Lays the series `which` of `examples` out as `layout` says, in the block `bank`, with the noise of `noise`.
    pub(super) fn send(
        &mut self,
        banks: &mut Banks,
        bank: usize,
        layout: &Layout,
        examples: &Examples,
        which: &[usize],
        noise: &mut Option<Noise>,
    ) -> Result<()> {
        let stream = banks.stream;
        let mut to = banks.memory[bank].view_mut().typed(0, Dtype::U8, [layout.bytes()])?;
        match self {
            Self::Host => fill(to.as_mut_slice::<u8>()?, layout, examples, which, noise),
            Self::Pinned { buffers, next } => {
                let buffer = &mut buffers[*next];
                *next = 1 - *next;
                fill(&mut buffer.as_mut_slice::<u8>()?[..layout.bytes()], layout, examples, which, noise);
                buffer.send(&mut to, stream)?;
            }
        }
        Ok(())
    }
}

/// Padding is 0, but for elapsed times, where it is 1, so that arithmetic on it stays finite. Rows beyond `which` have
/// length 0, so that the head leaves them out.
pub(super) fn fill(bytes: &mut [u8], layout: &Layout, examples: &Examples, which: &[usize], noise: &mut Option<Noise>) {
    for (name, slot) in layout.slots() {
        let to = &mut bytes[slot.offset..slot.offset + slot.bytes()];
        let rows = slot.shape.first().copied().unwrap_or(0);
        let row_bytes = to.len() / rows.max(1);
        let padding = if name == "elapsed" { 1f32.to_ne_bytes() } else { [0; 4] };
        for b in 0..rows {
            let row = &mut to[b * row_bytes..(b + 1) * row_bytes];
            let written = match which.get(b) {
                None => 0,
                Some(&i) => {
                    let series = &examples.series[i];
                    match name.as_str() {
                        "x" => match noise {
                            None => put(row, series.values.iter().map(|v| v.to_ne_bytes())),
                            Some(Noise { deviation, rng }) => {
                                let noisy = |v: &f32| (f64::from(*v) + *deviation * rng.normal()) as f32;
                                put(row, series.values.iter().map(noisy).map(f32::to_ne_bytes))
                            }
                        },
                        "elapsed" => put(row, series.elapsed.iter().flatten().map(|v| v.to_ne_bytes())),
                        "lengths" => put(row, [(series.len as i32).to_ne_bytes()]),
                        "labels" => put(row, [examples.labels[i].to_ne_bytes()]),
                        // The class as numbers, one of which is 1; or the number itself.
                        _ if row.len() > 4 => {
                            let (class, count) = (examples.labels[i] as usize, row.len() / 4);
                            let one = |c: usize| if c == class { 1f32 } else { 0.0 };
                            put(row, (0..count).map(one).map(f32::to_ne_bytes))
                        }
                        _ => put(row, [examples.values[i].to_ne_bytes()]),
                    }
                }
            };
            row[written..].chunks_exact_mut(4).for_each(|c| c.copy_from_slice(&padding));
        }
    }
}

/// Writes elements from the front of `row`; gives the bytes that they took.
fn put(row: &mut [u8], elements: impl IntoIterator<Item = [u8; 4]>) -> usize {
    row.chunks_exact_mut(4).zip(elements).map(|(c, e)| c.copy_from_slice(&e)).count() * 4
}

//! The devices of a simulation, and how GPUs share its network.

use super::parts::RATE_HZ;
use crate::cuda::{CudaDevice, nvml};
use crate::spiking::life::{Living, Make};
use crate::spiking::partition::Layout;
use crate::spiking::simulate::parts::{Exchange, PartEngine, Transport};
use crate::spiking::simulate::{CpuEngine, CudaPart, Engine, cuda};
use crate::spiking::{Plan, partition};
use crate::{Backend, Device, Error, Result};
use std::sync::Arc;

/// The device of a run, the GPUs that share its network (none on the CPU), and what a user should know of the choice.
///
/// # Errors
/// Of the devices; GPUs beside a backend that is not the first of them.
pub(super) fn devices(backend: Backend, gpus: Option<usize>) -> Result<(Device, Vec<Arc<CudaDevice>>, Option<String>)> {
    let (device, why) = match (gpus, backend) {
        (Some(0), _) => return Err(Error::config("0 GPUs cannot share a network; at least 1")),
        (None, backend) => Device::open(backend)?,
        (Some(_), Backend::Auto | Backend::Cuda(0)) => Device::open(Backend::Cuda(0))?,
        (Some(gpus), backend) => {
            return Err(Error::config(format!(
                "{gpus} GPUs are cuda:0 and those after it, and the backend is {backend}"
            )));
        }
    };
    let cards = from(&device, gpus)?;
    Ok((device, cards, why))
}

/// Likewise, of a part: those from the backend's on, of which there may be several.
///
/// # Errors
/// As [`devices`].
pub(super) fn part_devices(
    backend: Backend,
    gpus: Option<usize>,
) -> Result<(Device, Vec<Arc<CudaDevice>>, Option<String>)> {
    let backend = match (backend, gpus) {
        (_, Some(0)) => return Err(Error::config("0 GPUs cannot share a part; at least 1")),
        (Backend::Auto, Some(_)) => Backend::Cuda(0),
        (Backend::Cpu, Some(gpus)) => {
            return Err(Error::config(format!("{gpus} GPUs cannot share a part whose backend is cpu")));
        }
        (backend, _) => backend,
    };
    let (device, why) = Device::open(backend)?;
    let cards = from(&device, gpus)?;
    Ok((device, cards, why))
}

/// What these have taken so far by the driver's counters, J; none of none, and where one has no counter.
pub(super) fn energy_j(cards: &[Arc<CudaDevice>]) -> Option<f64> {
    let each = cards.iter().map(|card| nvml::read(card)?.energy_j);
    each.reduce(|a, b| Some(a? + b?)).flatten()
}

fn from(device: &Device, gpus: Option<usize>) -> Result<Vec<Arc<CudaDevice>>> {
    let mut cards = Vec::new();
    if let Device::Cuda(d) = device {
        d.require_compiler()?;
        cards.push(d.clone());
        for index in 1..gpus.unwrap_or(1) {
            cards.push(CudaDevice::open(d.index() + index)?);
        }
    }
    Ok(cards)
}

/// The engine of a part, on these GPUs, or, where there are none, on the CPU.
///
/// # Errors
/// As [`CpuEngine::of_part`] and [`CudaPart::new`].
pub(super) fn part_engine<'a>(
    plan: &'a Plan,
    layout: &Layout,
    part: usize,
    cards: &[Arc<CudaDevice>],
    (exchange, transport): (Option<Box<dyn Exchange + 'a>>, Transport),
    built: &(dyn Fn(usize, usize) + Sync),
) -> Result<Box<dyn PartEngine + 'a>> {
    Ok(match cards {
        [] if transport == Transport::Nccl => {
            return Err(Error::config(format!(
                "part {part} runs on the CPU, where NCCL carries no spikes; --transport tcp"
            )));
        }
        [] => Box::new(CpuEngine::of_part(plan, layout, part, exchange, built)?),
        cards => Box::new(CudaPart::new(plan, cards, layout, part, (exchange, transport), built)?),
    })
}

/// Refuses a way to share a network where no GPUs do.
pub(super) fn check_method(method: &str, device: &Device) -> Result<()> {
    if matches!(device, Device::Cpu) && method != "auto" {
        return Err(Error::config(format!(
            "{method} says how GPUs share a network, and this runs on {}",
            device.place()
        )));
    }
    Ok(())
}

/// The engine of a network on the CPU or on these GPUs, and the way in which several share it. Where cells die and are born, it goes from
/// one death to the next.
///
/// # Errors
/// Of the network, its memory and the devices.
pub(super) fn engine<'a>(
    plan: &'a Plan,
    (device, cards, method): (&Device, &[Arc<CudaDevice>], &str),
    built: &(dyn Fn(usize, usize) + Sync),
) -> Result<(Box<dyn Engine + 'a>, Option<&'static str>)> {
    if plan.network.lifecycle.is_none() {
        return match device {
            Device::Cpu => Ok((Box::new(CpuEngine::new(plan, built)?), None)),
            Device::Cuda(_) => on_gpus(plan, cards, method, built),
        };
    }
    if cards.len() > 1 {
        plan.refuse_life("a network on several GPUs")?;
    }
    let (on_cpu, cards, method) = (matches!(device, Device::Cpu), cards.to_vec(), method.to_owned());
    let make: Make = Box::new(move |plan| match on_cpu {
        true => Ok(Box::new(CpuEngine::new(plan, &|_, _| ())?)),
        false => Ok(on_gpus(plan, &cards, &method, &|_, _| ())?.0),
    });
    Ok((Box::new(Living::new(plan.network.clone(), make)?), None))
}

/// An engine in which GPUs share a network by `method`, and, where there are several, the way that it came to.
fn on_gpus<'a>(
    plan: &'a Plan,
    cards: &[Arc<CudaDevice>],
    method: &str,
    built: &(dyn Fn(usize, usize) + Sync),
) -> Result<(Box<dyn Engine + 'a>, Option<&'static str>)> {
    let (layout, by) = partition::choose_for_gpus(plan, RATE_HZ, cards.len(), method)?;
    Ok((cuda::engine_in(plan, cards, layout, built)?, (cards.len() > 1).then_some(by)))
}

/// How a network is cut, as people read it.
pub(super) fn words(engine: &dyn Engine, method: Option<&str>) -> String {
    method.map_or_else(|| engine.config(), |by| format!("{}, cells by {by}", engine.config()))
}

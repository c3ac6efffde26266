//! Sensors of a GPU through NVML, where it is installed: clock, power and energy for records of measurements.

use super::device::CudaDevice;
use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// What the sensors said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sensors {
    /// Present clock of the multiprocessors, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Present power draw of the board, watts.
    pub power_w: Option<f64>,
    /// What the board has taken since the driver was loaded, by the driver's counter, joules; none of boards without it. The counter goes
    /// on by steps of some tens of milliseconds.
    pub energy_j: Option<f64>,
}

const CLOCK_SM: c_int = 1;

struct Nvml {
    by_pci: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int,
    clock: unsafe extern "C" fn(*mut c_void, c_int, *mut c_uint) -> c_int,
    power: unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int,
    // Not of every driver.
    energy: Option<unsafe extern "C" fn(*mut c_void, *mut u64) -> c_int>,
    // Keeps the symbols valid.
    _library: Library,
}

impl Nvml {
    fn open() -> Option<Self> {
        let name = if cfg!(windows) { "nvml.dll" } else { "libnvidia-ml.so.1" };
        // SAFETY: NVML's initialisers only set up the library itself.
        let library = unsafe { Library::new(name) }.ok()?;
        // SAFETY: the types are those of nvml.h, for functions whose versions are in their names.
        unsafe {
            let init = *library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2").ok()?;
            let nvml = Self {
                by_pci: *library.get(b"nvmlDeviceGetHandleByPciBusId_v2").ok()?,
                clock: *library.get(b"nvmlDeviceGetClockInfo").ok()?,
                power: *library.get(b"nvmlDeviceGetPowerUsage").ok()?,
                energy: library.get(b"nvmlDeviceGetTotalEnergyConsumption").ok().map(|symbol| *symbol),
                _library: library,
            };
            (init() == 0).then_some(nvml)
        }
    }
}

/// Clock, power and energy of `device` now, or none where NVML is missing or does not know the device.
pub fn read(device: &CudaDevice) -> Option<Sensors> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = NVML.get_or_init(Nvml::open).as_ref()?;
    let pci = CString::new(device.attributes().ok()?.pci_id).ok()?;
    let mut handle = std::ptr::null_mut();
    let (mut mhz, mut milliwatts, mut millijoules) = (0, 0, 0);
    // SAFETY: NVML is initialised, the name ends with a zero, and the results are live integers.
    unsafe {
        if (nvml.by_pci)(pci.as_ptr(), &raw mut handle) != 0 {
            return None;
        }
        let clock = (nvml.clock)(handle, CLOCK_SM, &raw mut mhz) == 0;
        let power = (nvml.power)(handle, &raw mut milliwatts) == 0;
        let energy = nvml.energy.is_some_and(|energy| energy(handle, &raw mut millijoules) == 0);
        Some(Sensors {
            sm_clock_mhz: clock.then_some(mhz),
            power_w: power.then_some(f64::from(milliwatts) / 1000.0),
            energy_j: energy.then_some(millijoules as f64 / 1000.0),
        })
    }
}

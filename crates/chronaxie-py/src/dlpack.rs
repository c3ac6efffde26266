//! DLPack: how tensors of other libraries are seen and made without a copy, and without linking any of them.
//!
//! Structures and constants are those of the published header, version 1.3. PyTorch 2.10 and later hand out a table of
//! functions under `Tensor.__dlpack_c_exchange_api__`: reading a tensor through it takes 0.1 us, and making one 0.4.
#![allow(unsafe_code)]

use chronaxie::call::Tensor;
use chronaxie::{Dtype, Error, MAX_RANK, Place, Result, Shape};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
/// The major version that these structures follow.
const MAJOR: u32 = 1;
/// Where each tensor of a block starts: a line of a GPU's cache, if it fills one.
const LINE: usize = 128;
/// And if it is small: a vector of four floats.
const VECTOR: usize = 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    kind: i32,
    index: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDtype {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    rank: i32,
    dtype: DlDtype,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: DlTensor,
}

type Fail = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

/// The table of functions that a framework hands out.
#[repr(C)]
struct Table {
    version: Version,
    earlier: *mut c_void,
    allocate: unsafe extern "C" fn(*mut DlTensor, *mut *mut Managed, *mut c_void, Fail) -> c_int,
    from_object: unsafe extern "C" fn(*mut c_void, *mut *mut Managed) -> c_int,
    to_object: unsafe extern "C" fn(*mut Managed, *mut *mut c_void) -> c_int,
    read: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int,
}

/// A tensor of another library, for as long as its object is held.
#[derive(Clone, Copy)]
pub struct Seen {
    pub address: u64,
    pub dtype: Dtype,
    pub shape: Shape,
    pub strides: [isize; MAX_RANK],
    pub place: Place,
}

impl DlDtype {
    fn of(dtype: Dtype) -> Self {
        let code = match dtype {
            Dtype::I64 | Dtype::I32 => 0,
            Dtype::U8 => 1,
            Dtype::Bf16 => 4,
            Dtype::C64 => 5,
            _ => 2,
        };
        Self { code, bits: (8 * dtype.size()) as u8, lanes: 1 }
    }
    fn known(self) -> Option<Dtype> {
        [Dtype::F32, Dtype::F64, Dtype::Bf16, Dtype::F16, Dtype::I64, Dtype::I32, Dtype::U8, Dtype::C64]
            .into_iter()
            .find(|&d| self.lanes == 1 && (Self::of(d).code, Self::of(d).bits) == (self.code, self.bits))
    }
}

impl DlDevice {
    fn of(place: Place) -> Self {
        match place {
            Place::Cpu => Self { kind: CPU, index: 0 },
            Place::Cuda(i) => Self { kind: CUDA, index: i as i32 },
        }
    }
}

impl DlTensor {
    /// Of `data`, with sizes and strides that the caller keeps.
    fn new(data: *mut c_void, dtype: Dtype, place: Place, shape: &mut [i64], strides: *mut i64) -> Self {
        let (device, dtype) = (DlDevice::of(place), DlDtype::of(dtype));
        Self { data, device, rank: shape.len() as i32, dtype, shape: shape.as_mut_ptr(), strides, byte_offset: 0 }
    }

    /// What it says, once its axes, type and device are ones that the library has.
    ///
    /// # Safety
    /// `shape`, and `strides` if it is not null, must point at `rank` integers.
    unsafe fn seen(&self) -> Result<Seen> {
        let rank = usize::try_from(self.rank).unwrap_or(usize::MAX);
        if rank > MAX_RANK {
            return Err(Error::shape(format!(
                "a tensor of {} axes was given, at most {MAX_RANK} are taken",
                self.rank
            )));
        }
        let dtype = self.dtype.known().ok_or_else(|| {
            let DlDtype { code, bits, lanes } = self.dtype;
            Error::dtype(format!("a tensor of DLPack's type {code} with {bits} bits and {lanes} lanes is not taken"))
        })?;
        let place = match self.device.kind {
            CPU | CUDA_HOST => Place::Cpu,
            CUDA => Place::Cuda(self.device.index.try_into().unwrap_or(0)),
            other => return Err(Error::device(format!("a tensor lies on a device of DLPack's kind {other}"))),
        };
        let (mut sizes, mut strides) = ([0usize; MAX_RANK], [0isize; MAX_RANK]);
        for axis in 0..rank {
            // SAFETY: the caller says that there are `rank` of them.
            sizes[axis] = unsafe { *self.shape.add(axis) }.try_into().unwrap_or(0);
        }
        let shape = Shape::new(&sizes[..rank]);
        if self.strides.is_null() {
            strides = shape.contiguous_strides();
        } else {
            for (axis, stride) in strides.iter_mut().enumerate().take(rank) {
                // SAFETY: as above.
                *stride = unsafe { *self.strides.add(axis) } as isize;
            }
        }
        let address = (self.data as u64).wrapping_add(self.byte_offset);
        if address == 0 && shape.elements() > 0 {
            return Err(Error::device(format!("a tensor of shape {shape} has no memory of its own")));
        }
        Ok(Seen { address, dtype, shape, strides, place })
    }
}

/// A framework's table, which lives as long as the process.
#[derive(Clone, Copy)]
pub struct Exchange(&'static Table);

// SAFETY: a table of functions that never changes; who calls them holds the GIL.
unsafe impl Send for Exchange {}
// SAFETY: as above.
unsafe impl Sync for Exchange {}

impl Exchange {
    /// The table in a capsule, or none if it follows another version of the header.
    pub fn from_capsule(capsule: &Bound<'_, PyCapsule>) -> PyResult<Option<Self>> {
        let at = capsule.pointer_checked(Some(c"dlpack_exchange_api"))?;
        // SAFETY: the protocol: a capsule of that name holds the address of a table that is never freed, whatever its
        // version headed by that.
        let table = unsafe { &*at.as_ptr().cast::<Table>() };
        Ok((table.version.major == MAJOR && table.read.is_some()).then_some(Self(table)))
    }

    /// What a tensor of the framework is.
    pub fn read(&self, py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<Result<Seen>> {
        let mut seen = std::mem::MaybeUninit::<DlTensor>::zeroed();
        let read = self.0.read.ok_or_else(|| PyRuntimeError::new_err("the table has no function that reads"))?;
        // SAFETY: a live object, with the GIL held; the framework fills the structure or fails.
        if unsafe { read(tensor.as_ptr().cast(), seen.as_mut_ptr()) } != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: filled, and all of its fields take any bits; its arrays live as long as the tensor.
        Ok(unsafe { seen.assume_init_ref().seen() })
    }

    /// The framework's current stream on that CUDA device.
    pub fn stream(&self, py: Python<'_>, index: usize) -> PyResult<u64> {
        let mut stream = ptr::null_mut();
        // SAFETY: as the header has it.
        match unsafe { (self.0.stream)(CUDA, index as i32, &raw mut stream) } {
            0 => Ok(stream as u64),
            _ => Err(PyErr::fetch(py)),
        }
    }

    /// Bytes from the framework's allocator, in the order of its current stream; none where it refuses.
    pub fn allocate(&self, bytes: usize, place: Place) -> Option<Allocated> {
        unsafe extern "C" fn refused(_: *mut c_void, _: *const c_char, _: *const c_char) {}
        let (mut sizes, mut strides) = ([bytes as i64], [1]);
        let mut like = DlTensor::new(ptr::null_mut(), Dtype::U8, place, &mut sizes, strides.as_mut_ptr());
        let mut made = ptr::null_mut();
        // SAFETY: as the header has it; what is made is owned by `Allocated`.
        let code = unsafe { (self.0.allocate)(&raw mut like, &raw mut made, ptr::null_mut(), refused) };
        (code == 0 && !made.is_null()).then_some(Allocated(made))
    }

    /// A tensor of the framework over `part`, of which it is the owner once this succeeds.
    fn tensor<'py>(&self, py: Python<'py>, part: *mut Managed) -> PyResult<Bound<'py, PyAny>> {
        let mut object = ptr::null_mut();
        // SAFETY: a structure of the header, whose deleter waits to be called.
        if unsafe { (self.0.to_object)(part, &raw mut object) } != 0 || object.is_null() {
            // SAFETY: nobody took it.
            unsafe { Part::free(part) };
            return Err(PyErr::take(py).unwrap_or_else(|| PyRuntimeError::new_err("no tensor could be made")));
        }
        // SAFETY: a new reference.
        Ok(unsafe { Bound::from_owned_ptr(py, object.cast()) })
    }

    /// A tensor without memory, of which the framework makes others alike.
    pub fn pattern<'py>(
        &self,
        py: Python<'py>,
        dtype: Dtype,
        shape: &Shape,
        place: Place,
    ) -> PyResult<Bound<'py, PyAny>> {
        let block = Block::new(None, 1);
        // SAFETY: its only part.
        self.tensor(py, unsafe { block.part(0, self.0.version, ptr::null_mut(), dtype, shape, place) })
    }

    /// Tensors in one allocation, behind each other, with the address of each; none where the framework refuses the
    /// memory. It is freed with the last of them, by whichever thread lets go of it.
    pub fn block<'py>(
        &self,
        py: Python<'py>,
        tensors: &[(Dtype, Shape)],
        place: Place,
    ) -> PyResult<Option<Addressed<'py>>> {
        let place_of = |end: usize, &(dtype, shape): &(Dtype, Shape)| {
            let bytes = shape.elements() * dtype.size();
            let begin = end.next_multiple_of(if bytes < LINE { VECTOR } else { LINE });
            (begin, begin + bytes)
        };
        let bytes = tensors.iter().fold(0, |end, t| place_of(end, t).1);
        let Some(memory) = self.allocate(bytes, place) else { return Ok(None) };
        let (base, mut end) = (memory.address(), 0);
        let block = Block::new(Some(memory), tensors.len());
        let mut made = Vec::with_capacity(tensors.len());
        for (at, tensor) in tensors.iter().enumerate() {
            let begin;
            (begin, end) = place_of(end, tensor);
            let address = base + begin as u64;
            // SAFETY: each part is made once.
            let part = unsafe { block.part(at, self.0.version, address as *mut c_void, tensor.0, &tensor.1, place) };
            made.push((self.tensor(py, part)?, address));
        }
        Ok(Some(made))
    }
}

/// Tensors with the address of each.
pub type Addressed<'py> = Vec<(Bound<'py, PyAny>, u64)>;

/// A block of the framework's memory.
pub struct Allocated(*mut Managed);

// SAFETY: the header has deleters be called from any thread.
unsafe impl Send for Allocated {}
// SAFETY: through a shared reference only its address is read.
unsafe impl Sync for Allocated {}

impl Allocated {
    pub fn address(&self) -> u64 {
        // SAFETY: owned, and freed by `drop` alone.
        let tensor = unsafe { &(*self.0).tensor };
        (tensor.data as u64).wrapping_add(tensor.byte_offset)
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: owned, and called once.
        unsafe {
            if let Some(free) = (*self.0).deleter {
                free(self.0);
            }
        }
    }
}

/// A tensor that was handed to a framework.
#[repr(C)]
struct Part {
    managed: Managed,
    shape: [i64; MAX_RANK],
    strides: [i64; MAX_RANK],
}

/// Tensors that share memory, or have none, in one allocation of ours: each part that a framework has keeps it alive.
struct Block {
    parts: Box<[UnsafeCell<MaybeUninit<Part>>]>,
    _memory: Option<Allocated>,
}

impl Block {
    fn new(memory: Option<Allocated>, parts: usize) -> Arc<Self> {
        let parts = (0..parts).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        // Counted from several threads, each of which touches its own part alone.
        #[allow(clippy::arc_with_non_send_sync)]
        Arc::new(Self { parts, _memory: memory })
    }
    /// Fills part `at`, for a framework, which gives it back to `Part::free`.
    ///
    /// # Safety
    /// Once a part; `data` must be memory of the block of that size.
    unsafe fn part(
        self: &Arc<Self>,
        at: usize,
        version: Version,
        data: *mut c_void,
        dtype: Dtype,
        shape: &Shape,
        place: Place,
    ) -> *mut Managed {
        let part = self.parts[at].get().cast::<Part>();
        let filled = Part {
            managed: Managed {
                version,
                context: Arc::into_raw(self.clone()).cast_mut().cast(),
                deleter: Some(Part::free),
                flags: 0,
                tensor: DlTensor::new(data, dtype, place, &mut [], ptr::null_mut()),
            },
            shape: std::array::from_fn(|i| shape.get(i).map_or(0, |&n| n as i64)),
            strides: shape.contiguous_strides().map(|s| s as i64),
        };
        // SAFETY: nobody else has this part, and it stays where it is.
        unsafe {
            part.write(filled);
            let tensor = &raw mut (*part).managed.tensor;
            (*tensor).rank = shape.len() as i32;
            (*tensor).shape = (&raw mut (*part).shape).cast();
            (*tensor).strides = (&raw mut (*part).strides).cast();
        }
        part.cast()
    }
}

impl Part {
    unsafe extern "C" fn free(managed: *mut Managed) {
        // SAFETY: the framework gives back what `Block::part` gave it, once, with the block that it counts.
        drop(unsafe { Arc::from_raw((*managed).context.cast_const().cast::<Block>()) });
    }
}

const OLD: &CStr = c"dltensor";
const NEW: &CStr = c"dltensor_versioned";

/// The tensor behind a capsule of `__dlpack__`, which owns it until the capsule goes.
pub fn from_capsule(capsule: &Bound<'_, PyAny>) -> PyResult<Result<Seen>> {
    let capsule = capsule.cast::<PyCapsule>()?;
    if let Ok(at) = capsule.pointer_checked(Some(NEW)) {
        // SAFETY: the protocol: a capsule of that name holds a versioned tensor; other major versions differ behind the
        // version alone.
        return Ok(unsafe {
            let managed = &*at.as_ptr().cast::<Managed>();
            match managed.version.major {
                MAJOR => managed.tensor.seen(),
                other => Err(Error::device(format!("a tensor follows DLPack {other}, {MAJOR} is known"))),
            }
        });
    }
    let at = capsule.pointer_checked(Some(OLD))?;
    // SAFETY: the protocol: a capsule of that name holds a structure whose first field is the tensor.
    Ok(unsafe { (*at.as_ptr().cast::<DlTensor>()).seen() })
}

/// The kind and index of a place, as `__dlpack_device__` has them.
pub fn device(place: Place) -> (i32, i32) {
    let device = DlDevice::of(place);
    (device.kind, device.index)
}

/// A tensor of ours on its way to another library: the form that knows no versions, which all take.
#[repr(C)]
struct Handed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Handed)>,
    shape: [i64; MAX_RANK],
    strides: [i64; MAX_RANK],
    _owner: Arc<Tensor>,
}

unsafe extern "C" fn free_handed(handed: *mut Handed) {
    // SAFETY: whoever took it gives back what `to_capsule` made, once.
    drop(unsafe { Box::from_raw(handed) });
}

/// Frees what nobody took: a capsule that was taken has another name.
unsafe extern "C" fn free_capsule(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: called by Python on the capsule that `to_capsule` made, with the GIL held.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, OLD.as_ptr()) == 1 {
            free_handed(pyo3::ffi::PyCapsule_GetPointer(capsule, OLD.as_ptr()).cast());
        }
    }
}

/// A capsule for `__dlpack__` that keeps the tensor alive.
pub fn to_capsule<'py>(py: Python<'py>, tensor: &Arc<Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let view = tensor.view();
    let mut handed = Box::new(Handed {
        tensor: DlTensor::new(view.address() as *mut c_void, view.dtype(), view.place(), &mut [], ptr::null_mut()),
        context: ptr::null_mut(),
        deleter: Some(free_handed),
        shape: std::array::from_fn(|i| view.shape().get(i).map_or(0, |&n| n as i64)),
        strides: std::array::from_fn(|i| view.strides().get(i).map_or(0, |&n| n as i64)),
        _owner: tensor.clone(),
    });
    handed.tensor.rank = view.shape().len() as i32;
    handed.tensor.shape = handed.shape.as_mut_ptr();
    handed.tensor.strides = handed.strides.as_mut_ptr();
    let handed = Box::into_raw(handed);
    // SAFETY: a live pointer under the protocol's name, freed by the capsule unless somebody takes it.
    unsafe {
        let capsule = pyo3::ffi::PyCapsule_New(handed.cast(), OLD.as_ptr(), Some(free_capsule));
        if capsule.is_null() {
            free_handed(handed);
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr(py, capsule))
    }
}

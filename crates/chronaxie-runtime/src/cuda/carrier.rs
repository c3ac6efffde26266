//! Bytes between files and device memory, beside whatever else the device does.
//!
//! A carrier has a stream and pinned buffers of its own. The calling thread puts copies on the stream and asks for their ends; threads
//! that know nothing of the device write or read the file meanwhile, each a piece of its own place:
//!
//! ```text
//! save:  device --copy engine--> pinned buffer --a thread's write--> file
//! load:  file --a thread's read--> pinned buffer --copy engine--> device
//! ```
//!
//! A copy between pinned memory and a device needs no multiprocessor, so it is made while a kernel occupies all of them. Nothing here waits
//! for another stream, for the default stream or for the device, and nothing is allocated or freed: such a call would wait for that kernel.

use super::device::CudaDevice;
use super::lock;
use super::memory::{DeviceBuffer, PinnedBuffer};
use super::stream::{Event, Stream, StreamRef};
use crate::error::{Error, ErrorKind, Result};
use crate::positioned::{read_to_end_at, write_all_at};
use crate::tensor::Dtype;
use std::collections::VecDeque;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of a pinned buffer. A copy of as many takes 0.15 to 0.35 ms, a hundred times what starting it takes, and a write 1 to 4 ms.
const PIECE: usize = 8 << 20;
/// Pinned buffers: for every thread that reads, and half as many from which the device copies meanwhile.
const BUFFERS: usize = READERS + READERS / 2;
/// Threads that read: one copies 2 to 5 GB/s out of the system's cache of the file.
const READERS: usize = 8;
/// Threads that write. File systems of one machine let one at a time write to a file (on ext4 and tmpfs two were no faster than one), and
/// those who wait for it spin; others, and files opened for direct access, gain by several.
const WRITERS: usize = 4;
/// How long `ready`, or a copy that nothing has to precede, may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two questions whether a copy has come.
const PAUSE: Duration = Duration::from_micros(40);

/// Which way the bytes of [`Carrier::load`] came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carried {
    /// Through the host's memory.
    Pinned,
    /// Straight from the storage, by cuFile.
    CuFile,
}

/// Copies device memory to files and files to device memory, through pinned buffers that it keeps for its life.
///
/// It is to be made before the kernel beside which it works: pinning memory may wait for the device. How fast it saves is the file
/// system's matter. Most let one thread at a time write to a file, so what is divided among several files, each with a carrier on a thread
/// of its own, is written sooner; and to overwrite a file in place takes half of the time that a new file does (both on ext4 and tmpfs).
pub struct Carrier {
    device: Arc<CudaDevice>,
    stream: Stream,
    /// All of them between two calls; a copy may be under way to or from one where a call has failed.
    buffers: Vec<PinnedBuffer>,
    /// What the stream of a target has done before a load.
    before: Event,
    patience: Duration,
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.buffers.first().map_or(0, PinnedBuffer::bytes);
        write!(f, "Carrier({} buffers of {bytes} bytes for {})", self.buffers.len(), self.device.name())
    }
}

/// A piece on its way, in a buffer: `bytes` bytes, `from` bytes after the first that is carried.
struct Piece {
    buffer: PinnedBuffer,
    from: usize,
    bytes: usize,
}

/// Between which memory and the file, in which direction.
enum Way<'a> {
    Save(&'a DeviceBuffer),
    Load(&'a mut DeviceBuffer),
}

impl Way<'_> {
    /// Puts the copy of a piece between its buffer and byte `at` of the device's memory on the stream.
    fn copy(&mut self, piece: &mut Piece, at: usize, stream: StreamRef) -> Result<()> {
        let (at, n) = (at + piece.from, piece.bytes);
        match self {
            Self::Save(source) => piece.buffer.receive(&source.bytes_view().typed(at, Dtype::U8, [n], &[1])?, stream),
            Self::Load(target) => piece.buffer.send(&mut target.bytes_view_mut().typed(at, Dtype::U8, [n])?, stream),
        }
    }
}

/// The part of a file that is written or read.
pub(super) struct Span<'a> {
    pub file: &'a File,
    path: &'a Path,
    pub offset: u64,
    pub bytes: usize,
}

impl Span<'_> {
    fn write(&self, piece: &mut Piece) -> Result<()> {
        // SAFETY: the copy into this piece has been made.
        let data = unsafe { piece.buffer.memory() };
        write_all_at(self.file, &data[..piece.bytes], self.offset + piece.from as u64)
            .map_err(|e| Error::io("write", self.path, &e))
    }
    fn read(&self, piece: &mut Piece) -> Result<()> {
        // SAFETY: the copy out of this piece's buffer has been made.
        let data = unsafe { piece.buffer.memory() };
        let at = self.offset + piece.from as u64;
        let count =
            read_to_end_at(self.file, &mut data[..piece.bytes], at).map_err(|e| Error::io("read", self.path, &e))?;
        if count == piece.bytes { Ok(()) } else { Err(self.too_short(at + count as u64)) }
    }
    /// That the file ends at byte `end`.
    fn too_short(&self, end: u64) -> Error {
        let end = self.file.metadata().ok().filter(std::fs::Metadata::is_file).map_or(end, |m| m.len().min(end));
        let last = self.offset + self.bytes as u64;
        let asked = format!("bytes {} to {last} were asked for", self.offset);
        let message = format!("cannot read {}: it ends at byte {end}, and {asked}", self.path.display());
        Error::new(ErrorKind::Io, message)
    }
}

impl Carrier {
    /// A carrier for `device`, with 12 pinned buffers of 8 MiB: for up to eight threads, and four for copies meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] where the system has not as much to pin; [`ErrorKind::Cuda`].
    pub fn new(device: &Arc<CudaDevice>) -> Result<Self> {
        Self::with_buffers(device, BUFFERS, PIECE)
    }

    /// A carrier with `count` buffers of `bytes` bytes each. With one there is no overlap of writing and copying.
    ///
    /// # Errors
    /// As [`Carrier::new`], and [`ErrorKind::Value`] for none or empty ones.
    pub fn with_buffers(device: &Arc<CudaDevice>, count: usize, bytes: usize) -> Result<Self> {
        if count == 0 || bytes == 0 {
            return Err(Error::value(format!("a carrier cannot carry anything in {count} buffers of {bytes} bytes")));
        }
        let buffers = (0..count).map(|_| PinnedBuffer::alloc(device, bytes)).collect::<Result<_>>()?;
        let (stream, before) = (device.new_stream()?, Event::new(device, false)?);
        Ok(Self { device: device.clone(), stream, buffers, before, patience: PATIENCE })
    }

    /// Its device.
    pub fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    /// How long what a call waits for on the device may take before the device counts as lost: 60 s if nothing else is said.
    pub fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Copies bytes `at..at + bytes` of `source` to `file`, whose name is `path`, from byte `offset` on, once `ready` has come: an event
    /// of the stream that fills `source`. Returns when all is written, but not synchronised with the disk.
    ///
    /// Neither the stream of `source` nor any other is used or waited for. `source` must not be written before this returns.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] with the path where a write fails; the file then has pieces of these bytes. [`ErrorKind::Cuda`] where the device
    /// fails, [`ErrorKind::Lost`] where it does not answer; [`ErrorKind::Shape`] for bytes that `source` does not have, and
    /// [`ErrorKind::Device`] for another device's. After any of them the carrier can be used again.
    pub fn save(
        &mut self,
        source: &DeviceBuffer,
        at: usize,
        bytes: usize,
        ready: &Event,
        file: &File,
        path: &Path,
        offset: u64,
    ) -> Result<()> {
        let span = self.span("save", source, at, bytes, file, path, offset)?;
        if bytes == 0 {
            return Ok(());
        }
        let _guard = self.device.guard()?;
        let _capture = self.device.outside_capture()?;
        self.wait(ready)?;
        self.carry(Way::Save(source), at, &span)
    }

    /// Copies `bytes` bytes of `file`, whose name is `path`, from byte `offset` on to bytes `at..at + bytes` of `target`, after what is
    /// on the stream of `target` now. When it returns they are there, for every stream. Where cuFile is present and takes the file, they
    /// come straight from the storage, else through pinned buffers; which it was is the result, and why it was not cuFile is logged.
    ///
    /// # Errors
    /// As [`Carrier::save`]; [`ErrorKind::Io`] also where the file ends too early. The bytes of `target` are then old or new ones.
    pub fn load(
        &mut self,
        file: &File,
        path: &Path,
        offset: u64,
        target: &mut DeviceBuffer,
        at: usize,
        bytes: usize,
    ) -> Result<Carried> {
        let span = self.span("load", target, at, bytes, file, path, offset)?;
        if bytes == 0 {
            return Ok(Carried::Pinned);
        }
        let length = file.metadata().map_err(|e| Error::io("read", path, &e))?;
        if length.is_file() && length.len() < offset + bytes as u64 {
            return Err(span.too_short(length.len()));
        }
        let _guard = self.device.guard()?;
        let _capture = self.device.outside_capture()?;
        if target.stream().is_capturing(&self.device)? {
            return Err(Error::new(
                ErrorKind::Cuda,
                format!(
                    "{} cannot be loaded into a buffer whose stream is being captured: load before",
                    path.display()
                ),
            ));
        }
        self.before.record(target.stream())?;
        self.wait(&self.before)?;
        #[cfg(target_os = "linux")]
        if let Some(cufile) = super::cufile::CuFile::get() {
            use super::cufile::{Stop, tell};
            match cufile.read(&self.device, &span, target, at) {
                Ok(()) => return Ok(Carried::CuFile),
                Err(Stop::Ends(end)) => return Err(span.too_short(end)),
                Err(Stop::Refused(why)) => tell(&why),
            }
        }
        self.carry(Way::Load(target), at, &span)?;
        Ok(Carried::Pinned)
    }

    /// The part of the file that a call is about, if the call can be made.
    fn span<'a>(
        &self,
        verb: &str,
        memory: &DeviceBuffer,
        at: usize,
        bytes: usize,
        file: &'a File,
        path: &'a Path,
        offset: u64,
    ) -> Result<Span<'a>> {
        if memory.device().index() != self.device.index() {
            let (mine, its) = (&self.device, memory.device());
            return Err(Error::device(format!("a carrier of {mine:?} cannot {verb} memory of {its:?}")));
        }
        if at.checked_add(bytes).is_none_or(|end| end > memory.bytes()) {
            return Err(Error::shape(format!(
                "a carrier cannot {verb} {bytes} bytes from byte {at} on of a buffer of {} bytes",
                memory.bytes()
            )));
        }
        if offset.checked_add(bytes as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::value(format!("no file has {bytes} bytes at byte {offset}: {}", path.display())));
        }
        Ok(Span { file, path, offset, bytes })
    }

    /// Waits on the host, so that no other stream waits behind this one's wait for the event.
    fn wait(&self, event: &Event) -> Result<()> {
        if event.device().index() != self.device.index() {
            return Err(Error::device(format!(
                "a carrier of {:?} waits for an event of {:?}",
                self.device,
                event.device()
            )));
        }
        self.wait_until(|| event.is_done())
    }

    fn wait_until(&self, is_done: impl Fn() -> Result<bool>) -> Result<()> {
        let mut waited = Waited::default();
        while !is_done()? {
            // A checkpoint that follows a long kernel is in no hurry.
            let pause = if waited.0 < Duration::from_secs(1) { PAUSE } else { 20 * PAUSE };
            waited.while_doing(|| std::thread::sleep(pause));
            waited.refuse(self.patience, &self.device)?;
        }
        Ok(())
    }

    /// Waits until no copy of an earlier call that failed is under way in a buffer.
    fn settle(&self) -> Result<()> {
        for buffer in &self.buffers {
            self.wait_until(|| buffer.is_copied())?;
        }
        Ok(())
    }

    fn carry(&mut self, way: Way<'_>, at: usize, span: &Span<'_>) -> Result<()> {
        self.settle()?;
        let save = matches!(way, Way::Save(_));
        let most = if save { WRITERS } else { READERS };
        let threads = most.min(self.buffers.len()).min(span.bytes.div_ceil(self.buffers[0].bytes()));
        let (jobs, next_job) = channel();
        let (give_back, done) = channel();
        let (next_job, stop) = (Mutex::new(next_job), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (next_job, stop) = (&next_job, &stop);
            for crew in 0..threads {
                let give_back = give_back.clone();
                let work = move |piece: &mut Piece| if save { span.write(piece) } else { span.read(piece) };
                let thread = std::thread::Builder::new().name("chronaxie-carrier".into());
                match thread.spawn_scoped(scope, move || serve(next_job, &give_back, stop, work)) {
                    Ok(_) => {}
                    Err(e) if crew == 0 => {
                        return Err(Error::new(ErrorKind::Io, format!("no thread can be made to carry bytes: {e}")));
                    }
                    // Fewer do it, too.
                    Err(_) => break,
                }
            }
            drop(give_back);
            // The threads end with the sender of their jobs, which the traffic holds.
            let traffic =
                Traffic { carrier: self, way, at, jobs, stop, copying: VecDeque::new(), with_threads: 0, failed: None };
            traffic.run(&done, span.bytes)
        })
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        for buffer in self.buffers.drain(..) {
            // Freeing it would wait, without a bound where the device is lost, for a copy that a failed call has left.
            if !buffer.is_copied().unwrap_or(false) {
                std::mem::forget(buffer);
            }
        }
    }
}

/// What a thread does: the file's side of one piece after the other, and nothing with the device.
fn serve(
    jobs: &Mutex<Receiver<Piece>>,
    done: &Sender<(Piece, Result<()>)>,
    stop: &AtomicBool,
    work: impl Fn(&mut Piece) -> Result<()>,
) {
    loop {
        // The lock is held while this thread waits for a job, and not while it does it.
        let job = lock(jobs).recv();
        let Ok(mut piece) = job else { return };
        let result = if stop.load(Ordering::Relaxed) { Ok(()) } else { work(&mut piece) };
        stop.fetch_or(result.is_err(), Ordering::Relaxed);
        if done.send((piece, result)).is_err() {
            return;
        }
    }
}

/// Where the pieces of one call are: idle buffers are the carrier's, others are with the stream or with threads.
struct Traffic<'a> {
    carrier: &'a mut Carrier,
    way: Way<'a>,
    at: usize,
    jobs: Sender<Piece>,
    stop: &'a AtomicBool,
    /// In the order of the stream.
    copying: VecDeque<Piece>,
    with_threads: usize,
    failed: Option<Error>,
}

impl Traffic<'_> {
    /// Carries `bytes` bytes; after an error, until nothing is under way any more.
    fn run(mut self, done: &Receiver<(Piece, Result<()>)>, bytes: usize) -> Result<()> {
        let save = matches!(self.way, Way::Save(_));
        let (mut next, mut waited) = (0, Waited::default());
        loop {
            while self.failed.is_none()
                && next < bytes
                && let Some(buffer) = self.carrier.buffers.pop()
            {
                let piece = Piece { from: next, bytes: buffer.bytes().min(bytes - next), buffer };
                next += piece.bytes;
                if save { self.copy(piece) } else { self.hand_over(piece) }
            }
            while let Some(first) = self.copying.front() {
                match first.buffer.is_copied() {
                    Ok(false) => break,
                    Ok(true) => {
                        waited = Waited::default();
                        let piece = self.copying.pop_front().expect("the first was just looked at");
                        if save { self.hand_over(piece) } else { self.carrier.buffers.push(piece.buffer) }
                    }
                    Err(e) => self.give_up(e),
                }
            }
            let came = match (self.copying.is_empty(), self.with_threads) {
                (true, 0) if next < bytes && self.failed.is_none() => continue,
                (true, 0) => break,
                (true, _) => done.recv().map_err(|_| RecvTimeoutError::Disconnected),
                (false, _) => waited.while_doing(|| done.recv_timeout(PAUSE)),
            };
            match came {
                Ok((piece, result)) => {
                    self.with_threads -= 1;
                    match result {
                        Ok(()) if !save && self.failed.is_none() => self.copy(piece),
                        Ok(()) => self.carrier.buffers.push(piece.buffer),
                        Err(e) => {
                            self.carrier.buffers.push(piece.buffer);
                            self.fail(e);
                        }
                    }
                }
                // With no thread there is a copy that is under way.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(PAUSE),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Err(e) = waited.refuse(self.carrier.patience, &self.carrier.device) {
                self.give_up(e);
            }
        }
        self.failed.map_or(Ok(()), Err)
    }

    fn fail(&mut self, e: Error) {
        self.stop.store(true, Ordering::Relaxed);
        self.failed.get_or_insert(e);
    }

    /// The device does not make the copies that are under way.
    fn give_up(&mut self, e: Error) {
        self.fail(e);
        self.carrier.buffers.extend(self.copying.drain(..).map(|piece| piece.buffer));
    }

    fn copy(&mut self, mut piece: Piece) {
        let stream = self.carrier.stream.as_ref();
        match self.way.copy(&mut piece, self.at, stream) {
            Ok(()) => self.copying.push_back(piece),
            Err(e) => {
                self.carrier.buffers.push(piece.buffer);
                self.fail(e);
            }
        }
    }

    fn hand_over(&mut self, piece: Piece) {
        if self.failed.is_some() {
            return self.carrier.buffers.push(piece.buffer);
        }
        match self.jobs.send(piece) {
            Ok(()) => self.with_threads += 1,
            Err(refused) => {
                self.carrier.buffers.push(refused.0.buffer);
                self.fail(Error::new(ErrorKind::Io, "the threads that carry bytes have ended"));
            }
        }
    }
}

/// How long something has been waited for, without the time that questions to the driver took.
#[derive(Default)]
struct Waited(Duration);

impl Waited {
    fn while_doing<R>(&mut self, wait: impl FnOnce() -> R) -> R {
        let since = Instant::now();
        let result = wait();
        self.0 += since.elapsed();
        result
    }
    fn refuse(&self, patience: Duration, device: &CudaDevice) -> Result<()> {
        if self.0 <= patience {
            return Ok(());
        }
        Err(Error::lost(format!(
            "a carrier has waited {} s for {device:?}, which has not done what precedes its copies or a copy",
            patience.as_secs_f64()
        )))
    }
}

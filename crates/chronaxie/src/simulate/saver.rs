//! Checkpoints are written while the run goes on.
//!
//! A snapshot is taken between two steps, and a thread writes it. One that is taken while another is being written waits, and gives way
//! to the next: so a run is not held up by its disk, and the file is of the last moment for which there was time. Who stops waits until
//! the last one is there.

use crate::spiking::simulate::{Around, Snapshot};
use crate::{Error, Result};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// A checkpoint that is to be written.
pub(super) struct Save {
    pub snapshot: Box<dyn Snapshot>,
    pub around: Around,
    /// Logs that it refers to, which are to be on the disk before it.
    pub logs: Vec<(PathBuf, File)>,
    pub path: PathBuf,
}

impl Save {
    fn write(self) -> Result<()> {
        let (since, step) = (Instant::now(), self.snapshot.step());
        for (path, log) in &self.logs {
            log.sync_data().map_err(|e| Error::io("write", path, &e))?;
        }
        self.around.write(self.snapshot, &self.path)?;
        let took = since.elapsed().as_secs_f64() * 1e3;
        crate::log::debug(format_args!("the checkpoint of step {step} was written in {took:.1} ms"));
        Ok(())
    }
}

#[derive(Default)]
struct Work {
    waiting: Option<Save>,
    writing: bool,
    ended: bool,
    written: u64,
    failed: Option<Error>,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn wait<'w>(&self, work: MutexGuard<'w, Work>) -> MutexGuard<'w, Work> {
        self.changed.wait(work).unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is offered, until there is nothing any more and nobody offers.
    fn serve(&self) {
        let mut work = self.lock();
        loop {
            let Some(save) = work.waiting.take() else {
                if work.ended {
                    return;
                }
                work = self.wait(work);
                continue;
            };
            work.writing = true;
            drop(work);
            let wrote = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| save.write()));
            let wrote = wrote.unwrap_or_else(|_| Err(Error::value("the thread that writes checkpoints has panicked")));
            work = self.lock();
            work.writing = false;
            match wrote {
                Ok(()) => work.written += 1,
                Err(e) => work.failed = Some(e),
            }
            self.changed.notify_all();
        }
    }
}

/// The thread that writes; dropping it waits for what it has.
pub(super) struct Saver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    pub fn new() -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let own = shared.clone();
        let thread = std::thread::Builder::new().name("chronaxie-checkpoints".into()).spawn(move || own.serve());
        let thread = thread.map_err(|e| Error::value(format!("a thread for checkpoints cannot be made: {e}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Forgets what waits, since something later is about to be offered, and gives back what that holds; the error of what was written
    /// before, once.
    pub fn make_way(&self) -> Result<()> {
        let mut work = self.shared.lock();
        let forgotten = work.waiting.take();
        let failed = work.failed.take();
        drop(work);
        drop(forgotten);
        failed.map_or(Ok(()), Err)
    }

    /// Has `save` written, in place of what waits.
    pub fn offer(&self, save: Save) {
        let mut work = self.shared.lock();
        let before = work.waiting.replace(save);
        self.shared.changed.notify_all();
        drop(work);
        drop(before);
    }

    /// Waits until all is written; the error, if there was one.
    pub fn wait(&self) -> Result<()> {
        let mut work = self.shared.lock();
        while work.writing || work.waiting.is_some() {
            work = self.shared.wait(work);
        }
        work.failed.take().map_or(Ok(()), Err)
    }

    /// How many were written.
    pub fn written(&self) -> u64 {
        self.shared.lock().written
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spiking::simulate::{Checkpoint, State};
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A snapshot that says when it is written, and waits until it may be.
    struct Slow {
        step: u64,
        begun: Sender<u64>,
        go: Arc<Mutex<Receiver<bool>>>,
    }

    impl Snapshot for Slow {
        fn step(&self) -> u64 {
            self.step
        }
        fn collect(self: Box<Self>) -> Result<State> {
            self.begun.send(self.step).unwrap();
            let good = self.go.lock().unwrap().recv().unwrap();
            let state = State { step: self.step, ..State::default() };
            if good { Ok(state) } else { Err(Error::value("the device is gone")) }
        }
    }

    #[test]
    fn what_waits_gives_way_to_what_is_later() {
        let folder = std::env::temp_dir().join(format!("chronaxie-saver-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("state.bin");
        let ((begun, told), (go, gone)) = (channel(), channel());
        let gone = Arc::new(Mutex::new(gone));
        let saver = Saver::new().unwrap();
        let offer = |step: u64| {
            let around =
                Around { fingerprint: [0; 32], hash: Default::default(), replicas: vec![], logged: 0, counts: vec![] };
            let snapshot = Box::new(Slow { step, begun: begun.clone(), go: gone.clone() });
            saver.offer(Save { snapshot, around, logs: vec![], path: path.clone() });
        };
        let step = || Checkpoint::open(&path).unwrap().0.state.step;
        offer(1);
        assert_eq!(told.recv().unwrap(), 1);
        // While it is written, two more come; the first of them is never written.
        offer(2);
        offer(3);
        go.send(true).unwrap();
        assert_eq!(told.recv().unwrap(), 3);
        assert_eq!((step(), saver.written()), (1, 1));
        saver.make_way().unwrap();
        go.send(true).unwrap();
        saver.wait().unwrap();
        assert_eq!((step(), saver.written()), (3, 2));
        // An error is said once, to whoever comes next, and the file is what it was.
        offer(4);
        go.send(false).unwrap();
        assert!(saver.wait().unwrap_err().to_string().contains("the device is gone"));
        saver.make_way().unwrap();
        assert_eq!((step(), saver.written()), (3, 2));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing is left aside");
        // Who goes waits for what was offered.
        offer(5);
        go.send(true).unwrap();
        drop(saver);
        assert_eq!(step(), 5);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

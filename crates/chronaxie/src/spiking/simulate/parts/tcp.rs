//! Parts that are processes, on one machine or several, connected by TCP.
//!
//! Part 0 listens; every other part connects to it and says who it is and what network it has. Part 0 compares, and tells all
//! where the others listen and how the network is cut; then neighbours ([`neighbours`]) connect to each other. A frame is its
//! length (u64), its kind (u8) and its bytes. A part says every few seconds that it lives; one that says nothing for
//! [`Setup::patience`], or whose connection ends, ends the run everywhere: whoever sees it first tells the others why.
//!
//! Nothing is encrypted: machines that share a run trust their network. A key keeps strangers out who do not listen to it.

use super::frame::{Hello, Kind, Welcome, read_frame, write_frame};
use super::gather::{Link, neighbours};
use crate::{Error, Result};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Between two looks for what others wait for.
const LOOK: Duration = Duration::from_millis(20);
/// A greeting is no longer.
const GREETING: u64 = 4096;

/// A process that takes part.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its number.
    pub part: usize,
    /// Of how many.
    pub parts: usize,
    /// How long others may say nothing.
    pub patience: Duration,
    /// How long to wait until all are there.
    pub gathering: Duration,
    /// What all know and strangers do not; may be empty.
    pub key: String,
    /// Of the network; all have the same.
    pub fingerprint: [u8; 32],
}

struct Peer {
    stream: TcpStream,
    /// Who writes a frame holds it.
    writing: Mutex<()>,
}

struct Inner {
    part: usize,
    parts: usize,
    patience: Duration,
    peers: Vec<Option<Peer>>,
    /// Why the run cannot go on.
    fate: Mutex<Option<Error>>,
    done: AtomicBool,
    /// Of each part, whether its connection has ended.
    ended: Vec<AtomicBool>,
    /// As if the process stood still: it says no more that it lives.
    still: AtomicBool,
}

impl Inner {
    fn fate(&self) -> Option<Error> {
        self.fate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn send(&self, to: usize, kind: Kind, bytes: &[u8]) -> Result<()> {
        let Some(peer) = &self.peers[to] else {
            return Err(Error::value(format!("part {} has no connection to part {to}", self.part)));
        };
        let written = {
            let _own = peer.writing.lock().unwrap_or_else(PoisonError::into_inner);
            write_frame(&peer.stream, kind, bytes)
        };
        written.map_err(|e| {
            self.lose(to, &e);
            self.fate().unwrap_or_else(|| self.gone(to, &e))
        })
    }

    fn gone(&self, who: usize, e: &io::Error) -> Error {
        let what = match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                format!("has said nothing for {:.0} s", self.patience.as_secs_f64())
            }
            ErrorKind::InvalidData => format!("has sent {e}"),
            _ => "has gone: its connection ended".to_owned(),
        };
        Error::lost(format!("part {who} of {} {what}, as part {} saw", self.parts, self.part))
    }

    /// The connection to `who` is of no use any more.
    fn lose(&self, who: usize, e: &io::Error) {
        if self.done.load(Ordering::Acquire) {
            return;
        }
        if let Some(peer) = &self.peers[who] {
            let _ = peer.stream.shutdown(std::net::Shutdown::Both);
        }
        self.fail(self.gone(who, e), Some(who));
    }

    /// The run cannot go on; the first reason counts, and all but `except` are told.
    fn fail(&self, error: Error, except: Option<usize>) {
        {
            let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
            if fate.is_some() {
                return;
            }
            *fate = Some(error.clone());
        }
        let others = self.peers.iter().enumerate().filter(|(i, _)| Some(*i) != except);
        for peer in others.filter_map(|(_, p)| p.as_ref()) {
            let until = Instant::now() + Duration::from_millis(500);
            loop {
                match peer.writing.try_lock() {
                    Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
                    // Whoever does not read for so long finds out by itself.
                    Err(TryLockError::WouldBlock) => break,
                    _ => {
                        let _ = write_frame(&peer.stream, Kind::Fail, error.to_string().as_bytes());
                        break;
                    }
                }
            }
        }
    }

    fn read(&self, from: usize, mut stream: TcpStream, spikes: &Sender<Vec<u8>>, control: &Sender<Vec<u8>>) {
        loop {
            let frame = read_frame(&mut stream, 1 << 44);
            match frame {
                Ok((Kind::Alive, _)) => {}
                Ok((Kind::Spikes, bytes)) => drop(spikes.send(bytes)),
                Ok((Kind::Control, bytes)) => drop(control.send(bytes)),
                Ok((Kind::Fail, bytes)) => {
                    return self.fail(Error::lost(String::from_utf8_lossy(&bytes)), Some(from));
                }
                Ok((kind, _)) => {
                    let e = io::Error::new(ErrorKind::InvalidData, format!("a {kind:?} in the middle of a run"));
                    return self.lose(from, &e);
                }
                Err(e) => return self.lose(from, &e),
            }
        }
    }

    fn say_alive(&self, to: usize) {
        let every = (self.patience / 8).max(Duration::from_millis(5));
        let mut said = Instant::now();
        while !self.done.load(Ordering::Acquire) && self.fate().is_none() {
            std::thread::sleep(LOOK.min(every));
            if said.elapsed() < every || self.still.load(Ordering::Relaxed) {
                continue;
            }
            said = Instant::now();
            let Some(peer) = &self.peers[to] else { return };
            // Where a frame is on its way, that says so too.
            if let Ok(_own) = peer.writing.try_lock() {
                let _ = write_frame(&peer.stream, Kind::Alive, &[]);
            }
        }
    }
}

type Inbox = Vec<Option<Receiver<Vec<u8>>>>;

/// The connections of a part.
pub struct Mesh {
    inner: Arc<Inner>,
    /// How many nodes the parts lie on.
    pub nodes: usize,
    /// What part 0 wanted all to know.
    pub more: Vec<u8>,
    spikes: Option<Inbox>,
    control: Option<Inbox>,
}

/// What goes over a [`Mesh`] in one kind of frames.
pub struct MeshLink {
    inner: Arc<Inner>,
    inbox: Inbox,
    kind: Kind,
}

impl Link for MeshLink {
    fn send(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        self.inner.send(to, self.kind, bytes)
    }
    fn receive(&mut self, from: usize) -> Result<Vec<u8>> {
        let Some(inbox) = &self.inbox[from] else {
            return Err(Error::value(format!("part {} has no connection to part {from}", self.inner.part)));
        };
        loop {
            match inbox.recv_timeout(LOOK) {
                Ok(bytes) => return Ok(bytes),
                Err(e) => {
                    if let Some(fate) = self.inner.fate() {
                        return Err(fate);
                    }
                    if e == RecvTimeoutError::Disconnected {
                        return Err(self.inner.gone(from, &ErrorKind::UnexpectedEof.into()));
                    }
                }
            }
        }
    }
    fn done(&mut self) {
        self.inner.done.store(true, Ordering::Release);
    }
    fn fail(&mut self, error: &Error) {
        self.inner.fail(error.clone(), None);
    }
    fn fate(&self) -> Option<Error> {
        self.inner.fate()
    }
}

impl Mesh {
    fn new(setup: &Setup, streams: Vec<Option<TcpStream>>, nodes: usize, more: Vec<u8>) -> Result<Self> {
        let mut peers = Vec::new();
        let mut readers = Vec::new();
        for stream in streams {
            let Some(stream) = stream else {
                peers.push(None);
                readers.push(None);
                continue;
            };
            let ready = || -> io::Result<TcpStream> {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(setup.patience))?;
                stream.set_write_timeout(Some(setup.patience))?;
                stream.try_clone()
            };
            readers.push(Some(ready().map_err(|e| failed(setup, "prepare a connection", &e))?));
            peers.push(Some(Peer { stream, writing: Mutex::new(()) }));
        }
        let ended = readers.iter().map(|r| AtomicBool::new(r.is_none())).collect();
        let inner = Arc::new(Inner {
            part: setup.part,
            parts: setup.parts,
            patience: setup.patience,
            peers,
            fate: Mutex::new(None),
            done: AtomicBool::new(false),
            ended,
            still: AtomicBool::new(false),
        });
        let (mut spikes, mut control) = (Vec::new(), Vec::new());
        for (from, stream) in readers.into_iter().enumerate() {
            let Some(stream) = stream else {
                spikes.push(None);
                control.push(None);
                continue;
            };
            let ((to_spikes, s), (to_control, c)) = (channel(), channel());
            spikes.push(Some(s));
            control.push(Some(c));
            let (reader, alive) = (inner.clone(), inner.clone());
            let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
                let made = std::thread::Builder::new().name(format!("chronaxie-{name}-{from}")).spawn(work);
                made.map(drop).map_err(|e| failed(setup, "start a thread", &e))
            };
            spawn(
                "hears",
                Box::new(move || {
                    reader.read(from, stream, &to_spikes, &to_control);
                    reader.ended[from].store(true, Ordering::Release);
                }),
            )?;
            spawn("lives", Box::new(move || alive.say_alive(from)))?;
        }
        Ok(Self { inner, nodes, more, spikes: Some(spikes), control: Some(control) })
    }

    fn link(&self, inbox: Option<Inbox>, kind: Kind) -> MeshLink {
        MeshLink { inner: self.inner.clone(), inbox: inbox.unwrap_or_default(), kind }
    }
    /// That of spikes; the first call has it.
    pub fn spikes(&mut self) -> MeshLink {
        let inbox = self.spikes.take();
        self.link(inbox, Kind::Spikes)
    }
    /// That of questions and answers; the first call has it.
    pub fn control(&mut self) -> MeshLink {
        let inbox = self.control.take();
        self.link(inbox, Kind::Control)
    }
    /// Tells all that the run cannot go on.
    pub fn fail(&self, error: &Error) {
        self.inner.fail(error.clone(), None);
    }
    #[cfg(test)]
    pub(super) fn stop_living(&self) {
        self.inner.still.store(true, Ordering::Relaxed);
    }
    /// When the run is over: waits until part 0 has gone, so that no other part sees this one go before it knows.
    pub fn linger(&self) {
        let until = Instant::now() + self.inner.patience;
        while !self.inner.ended[0].load(Ordering::Acquire) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        let inner = &self.inner;
        if !inner.done.load(Ordering::Acquire) {
            inner.fail(Error::lost(format!("part {} of {} has ended", inner.part, inner.parts)), None);
        }
        inner.done.store(true, Ordering::Release);
        let close = |how| {
            for peer in inner.peers.iter().flatten() {
                let _ = peer.stream.shutdown(how);
            }
        };
        // What was said last is to arrive: a connection that is closed with bytes unread forgets it.
        close(std::net::Shutdown::Write);
        let until = Instant::now() + Duration::from_secs(1);
        while inner.ended.iter().any(|e| !e.load(Ordering::Acquire)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        close(std::net::Shutdown::Both);
    }
}

fn failed(setup: &Setup, doing: &str, e: &io::Error) -> Error {
    Error::lost(format!("part {} of {} cannot {doing}: {e}", setup.part, setup.parts))
}

fn short(hash: &[u8; 32]) -> String {
    hash[..4].iter().map(|b| format!("{b:02x}")).collect()
}

/// Accepts connections until `all` are there. `look` is called in between and may end the waiting.
fn gather(
    setup: &Setup,
    listener: &TcpListener,
    from: &[usize],
    look: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<(usize, TcpStream, Hello)>> {
    listener.set_nonblocking(true).map_err(|e| failed(setup, "listen", &e))?;
    let own = Hello::of(setup, 0);
    let until = Instant::now() + setup.gathering;
    let mut here: Vec<(usize, TcpStream, Hello)> = Vec::new();
    let refuse = |what: String, here: &[(usize, TcpStream, Hello)], new: &TcpStream| {
        for stream in here.iter().map(|(_, s, _)| s).chain([new]) {
            let _ = write_frame(stream, Kind::Fail, what.as_bytes());
        }
        Err(Error::config(what))
    };
    while here.len() < from.len() {
        look().inspect_err(|e| {
            for (_, stream, _) in &here {
                let _ = write_frame(stream, Kind::Fail, e.to_string().as_bytes());
            }
        })?;
        if Instant::now() > until {
            let missing = from.iter().filter(|p| here.iter().all(|(h, ..)| h != *p));
            let missing: Vec<String> = missing.map(ToString::to_string).collect();
            let what = format!(
                "part {} of {}: part {} did not join within {:.0} s",
                setup.part,
                setup.parts,
                missing.join(", "),
                setup.gathering.as_secs_f64()
            );
            for (_, stream, _) in &here {
                let _ = write_frame(stream, Kind::Fail, what.as_bytes());
            }
            return Err(Error::lost(what));
        }
        let Ok((mut stream, _)) = listener.accept() else {
            std::thread::sleep(LOOK / 4);
            continue;
        };
        let ready = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(5))));
        let hello = ready.and_then(|()| read_frame(&mut stream, GREETING));
        let hello = hello.ok().filter(|(kind, _)| *kind == Kind::Hello);
        // Whoever says something else is a stranger.
        let Some((hello, version)) = hello.and_then(|(_, bytes)| Hello::from_bytes(&bytes)) else { continue };
        if hello.key != own.key {
            continue;
        }
        let part = hello.part as usize;
        if version != env!("CARGO_PKG_VERSION") {
            let what =
                format!("part {part} is version {version}, part {} version {}", setup.part, env!("CARGO_PKG_VERSION"));
            return refuse(what, &here, &stream);
        }
        if hello.parts != own.parts {
            let what = format!("part {part} is one of {}, part {} one of {}", hello.parts, setup.part, own.parts);
            return refuse(what, &here, &stream);
        }
        if hello.fingerprint != own.fingerprint {
            let what = format!(
                "part {part} has another network than part {} ({} and {}): compare their configurations, flags and files by \
                 --print-config",
                setup.part,
                short(&hello.fingerprint),
                short(&own.fingerprint)
            );
            return refuse(what, &here, &stream);
        }
        if !from.contains(&part) || here.iter().any(|(h, ..)| *h == part) {
            let what = format!("part {part} of {} is there already, or is not waited for", setup.parts);
            let _ = write_frame(&stream, Kind::Fail, what.as_bytes());
            continue;
        }
        here.push((part, stream, hello));
    }
    Ok(here)
}

/// Part 0: waits for all others at `listener`, and tells them how many nodes there are and `more`. `look` is called in between
/// and may end the waiting.
///
/// # Errors
/// `Config`, where one has another network; `Lost`, where one does not come.
pub fn host(
    setup: &Setup,
    listener: &TcpListener,
    nodes: usize,
    more: Vec<u8>,
    look: &mut dyn FnMut() -> Result<()>,
) -> Result<Mesh> {
    let all: Vec<usize> = (1..setup.parts).collect();
    let here = gather(setup, listener, &all, look)?;
    let own = listener.local_addr().map_err(|e| failed(setup, "listen", &e))?;
    let mut places = vec![own; setup.parts];
    for (part, stream, hello) in &here {
        let ip = stream.peer_addr().map_err(|e| failed(setup, "see a peer", &e))?.ip();
        places[*part] = SocketAddr::new(ip, hello.port);
    }
    let welcome = Welcome { nodes: nodes.clamp(1, setup.parts) as u32, places, more };
    let bytes = welcome.to_bytes();
    let mut streams: Vec<Option<TcpStream>> = (0..setup.parts).map(|_| None).collect();
    for (part, stream, _) in here {
        write_frame(&stream, Kind::Welcome, &bytes).map_err(|e| failed(setup, &format!("welcome part {part}"), &e))?;
        streams[part] = Some(stream);
    }
    Mesh::new(setup, streams, welcome.nodes as usize, welcome.more)
}

/// Connects, again and again while there is time: the other may begin later.
fn connect(setup: &Setup, to: &str, until: Instant) -> Result<TcpStream> {
    loop {
        let places = to.to_socket_addrs().map_err(|e| failed(setup, &format!("find {to}"), &e))?;
        let mut last = io::Error::new(ErrorKind::NotFound, "there is no such place");
        for place in places {
            match TcpStream::connect_timeout(&place, Duration::from_secs(2)) {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        if Instant::now() > until {
            return Err(failed(setup, &format!("connect to {to}"), &last));
        }
        std::thread::sleep(LOOK);
    }
}

/// Any other part: joins the part 0 that listens at `to`, as `host:port`.
///
/// # Errors
/// `Lost`, where nobody is there, or part 0 refuses.
pub fn join(setup: &Setup, to: &str) -> Result<Mesh> {
    let until = Instant::now() + setup.gathering;
    let mut first = connect(setup, to, until)?;
    let ip: IpAddr = first.local_addr().map_err(|e| failed(setup, "see itself", &e))?.ip();
    let listener = TcpListener::bind((ip, 0)).map_err(|e| failed(setup, "listen", &e))?;
    let port = listener.local_addr().map_err(|e| failed(setup, "listen", &e))?.port();
    let hello = Hello::of(setup, port).to_bytes();
    // Others may join much later than this one.
    let patient = setup.gathering + Duration::from_secs(5);
    let asked = first.set_read_timeout(Some(patient)).and_then(|()| write_frame(&first, Kind::Hello, &hello));
    let answer = asked.and_then(|()| read_frame(&mut first, 1 << 40));
    let (kind, bytes) = answer.map_err(|e| failed(setup, &format!("hear from part 0 at {to}"), &e))?;
    if kind == Kind::Fail {
        return Err(Error::config(String::from_utf8_lossy(&bytes)));
    }
    let welcome = Some(bytes).filter(|_| kind == Kind::Welcome);
    let welcome = welcome.and_then(|bytes| Welcome::from_bytes(&bytes, setup.parts));
    let welcome = welcome.ok_or_else(|| Error::value(format!("{to} is no part 0 of {}", setup.parts)))?;
    let nodes = welcome.nodes as usize;
    let mut streams: Vec<Option<TcpStream>> = (0..setup.parts).map(|_| None).collect();
    let (low, high): (Vec<usize>, Vec<usize>) =
        neighbours(setup.parts, nodes, setup.part).into_iter().filter(|n| *n != 0).partition(|n| *n < setup.part);
    for part in low {
        let stream = connect(setup, &welcome.places[part].to_string(), Instant::now() + Duration::from_secs(10))?;
        write_frame(&stream, Kind::Hello, &hello).map_err(|e| failed(setup, &format!("greet part {part}"), &e))?;
        streams[part] = Some(stream);
    }
    let near = Setup { gathering: Duration::from_secs(20), ..setup.clone() };
    for (part, stream, _) in gather(&near, &listener, &high, &mut || Ok(()))? {
        streams[part] = Some(stream);
    }
    streams[0] = Some(first);
    Mesh::new(setup, streams, nodes, welcome.more)
}

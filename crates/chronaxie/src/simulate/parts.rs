//! A run whose network is shared out among processes.

use super::gpus::{part_devices, part_engine};
use super::run::fingerprint;
use crate::config::Config;
use crate::cuda::CudaDevice;
use crate::progress::Progress;
use crate::spiking::Plan;
use crate::spiking::network::read::read;
use crate::spiking::partition::{self, Layout};
use crate::spiking::simulate::parts::engine::serve;
use crate::spiking::simulate::parts::tcp::{self, Mesh, Setup};
use crate::spiking::simulate::parts::wire::Members;
use crate::spiking::simulate::parts::{AllGather, PartsEngine};
use crate::spiking::simulate::{Engine, PartEngine, Transport};
use crate::{Backend, Error, ErrorKind, Result};
use std::ffi::OsString;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the processes of a run know and strangers do not.
const KEY: &str = "CHRONAXIE_JOIN_KEY";
/// How long a part may say nothing.
const PATIENCE: Duration = Duration::from_secs(15);
/// Within this, parts that this process has begun are there.
const BEGUN: Duration = Duration::from_secs(25);
/// Likewise parts that someone begins, one after the other.
const JOINED: Duration = Duration::from_secs(300);
/// Hz, of cells whose rate nobody knows.
pub const RATE_HZ: f64 = 5.0;

/// How a network is shared out among processes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PartsOptions {
    /// How many.
    pub count: usize,
    /// How: `auto`, or the name of a partitioner.
    pub method: String,
    /// Machines, or what is to be taken for some: parts of one tell each other what fired before machines do.
    pub nodes: usize,
    /// Where this process, part 0, listens for the others, which somebody begins; nothing where it begins them itself.
    pub listen: Option<String>,
    /// The program and the first of its arguments; after these come `--part I --of N --join HOST:PORT --threads T --backend B`, and
    /// `--gpus G` where a part has several.
    pub program: Vec<OsString>,
    /// Whether parts that this process begins go by the GPUs of the machine in turn; else all have those of part 0.
    pub spread: bool,
    /// How spikes go from one part to another; others are told, where this process begins them.
    pub transport: Transport,
}

impl PartsOptions {
    /// So many processes, which `program` begins.
    pub fn new(count: usize, program: Vec<OsString>) -> Self {
        Self { count, method: "auto".into(), nodes: 1, listen: None, program, spread: true, transport: Transport::Auto }
    }
}

/// The other parts of a run, and how they are reached.
pub(super) struct Team {
    mesh: Option<Mesh>,
    children: Vec<Child>,
    layout: Layout,
    words: String,
    fingerprint: [u8; 32],
    /// Those of part 0.
    cards: Vec<Arc<CudaDevice>>,
    transport: Transport,
}

impl Team {
    /// Begins the other parts, or waits for them; part 0 has these GPUs, or the CPU.
    pub fn gather(
        options: &PartsOptions,
        plan: &Plan,
        cards: &[Arc<CudaDevice>],
        progress: &dyn Progress,
    ) -> Result<Self> {
        let parts = options.count;
        if options.nodes == 0 || options.nodes > parts.max(1) {
            return Err(Error::config(format!("{} nodes cannot have {parts} parts", options.nodes)));
        }
        let (layout, method) = partition::choose(plan, RATE_HZ, parts, &options.method)?;
        let place = options.listen.as_deref().unwrap_or("127.0.0.1:0");
        let unable = |e: &std::io::Error| Error::unavailable(format!("part 0 cannot listen at {place}: {e}"));
        let listener = TcpListener::bind(place).map_err(|e| unable(&e))?;
        let own = listener.local_addr().map_err(|e| unable(&e))?;
        let begun = options.listen.is_none();
        let setup = Setup {
            part: 0,
            parts,
            patience: PATIENCE,
            gathering: if begun { BEGUN } else { JOINED },
            key: if begun { secret() } else { std::env::var(KEY).unwrap_or_default() },
            fingerprint: fingerprint(&plan.network),
        };
        let words = format!("{parts} parts by {method} on {} nodes", options.nodes);
        let (fingerprint, cards, transport) = (setup.fingerprint, cards.to_vec(), options.transport);
        let mut team = Self { mesh: None, children: Vec::new(), layout, words, fingerprint, cards, transport };
        if begun {
            let threads = (crate::pool::num_threads() / parts).max(1);
            for part in 1..parts {
                let on = backend_of(options, &team.cards, part)?;
                let child = begin(options, &setup, part, &own.to_string(), threads, &on)?;
                progress.log(&format!("part {part} is process {}", child.id()));
                team.children.push(child);
            }
            if parts > 1 {
                crate::pool::set_num_threads(threads);
            }
        } else {
            progress.log(&format!("part 0 of {parts} listens at {own}"));
        }
        let children = &mut team.children;
        let mut look = || {
            if progress.interrupted() {
                return Err(Error::new(ErrorKind::Interrupted, "simulate: interrupted before it began"));
            }
            for (i, child) in children.iter_mut().enumerate() {
                if let Ok(Some(status)) = child.try_wait() {
                    let what = format!("part {} of {parts} has ended before it began: {status}", i + 1);
                    return Err(Error::lost(what));
                }
            }
            Ok(())
        };
        let mesh = tcp::host(&setup, &listener, options.nodes, team.layout.to_bytes(), &mut look)?;
        team.mesh = Some(mesh);
        Ok(team)
    }

    /// The engine of the whole.
    pub fn engine<'a>(
        &mut self,
        plan: &'a Plan,
        built: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Box<dyn Engine + 'a>> {
        let mesh = self.mesh.as_mut().ok_or_else(|| Error::value("the parts have not come together"))?;
        let members = Members::new(plan, &self.layout);
        let exchange = AllGather::new(mesh.spikes(), members, 0, mesh.nodes);
        let own = part_engine(plan, &self.layout, 0, &self.cards, (Some(Box::new(exchange)), self.transport), built);
        let own = own.inspect_err(|e| mesh.fail(e))?;
        let link = Box::new(mesh.control());
        let engine = PartsEngine::new(plan, self.layout.clone(), self.fingerprint, own, link, self.words.clone())?;
        Ok(Box::new(engine))
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        drop(self.mesh.take());
        let until = Instant::now() + Duration::from_secs(3);
        for child in &mut self.children {
            while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            if matches!(child.try_wait(), Ok(None)) {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

/// What nobody else can guess in the time that a run takes.
fn secret() -> String {
    use std::hash::{BuildHasher, Hasher};
    let word = || std::hash::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// On what a part runs that this process begins, as arguments.
fn backend_of(options: &PartsOptions, own: &[Arc<CudaDevice>], part: usize) -> Result<Vec<OsString>> {
    let transport = match options.transport {
        Transport::Auto => "auto",
        Transport::Tcp => "tcp",
        Transport::Nccl => "nccl",
    };
    let on = |more: &[&str]| ["--transport", transport].iter().chain(more).map(OsString::from).collect();
    let Some(first) = own.first() else { return Ok(on(&["--backend", "cpu"])) };
    let each = own.len();
    // As many parts as have GPUs of their own, then those of others again.
    let turns = (CudaDevice::count()? / each).max(1);
    let first = if options.spread { part % turns * each } else { first.index() };
    Ok(on(&["--backend", &format!("cuda:{first}"), "--gpus", &each.to_string()]))
}

fn begin(
    options: &PartsOptions,
    setup: &Setup,
    part: usize,
    place: &str,
    threads: usize,
    on: &[OsString],
) -> Result<Child> {
    let [program, first @ ..] = options.program.as_slice() else {
        return Err(Error::config("nothing says which program runs the other parts"));
    };
    let more = ["--part", &part.to_string(), "--of", &setup.parts.to_string(), "--join", place].map(OsString::from);
    let threads = ["--threads", &threads.to_string()].map(OsString::from);
    let mut command = Command::new(program);
    command
        .args(first)
        .args(more)
        .args(threads)
        .args(on)
        .env(KEY, &setup.key)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command.spawn().map_err(|e| Error::unavailable(format!("part {part} cannot be begun: {e}")))
}

/// Part `part` of `parts` of a run whose part 0 listens at `place`: does its work until the run is over, on the CPU, or on a GPU
/// (`cuda:I`) and, of `gpus`, those after it.
///
/// # Errors
/// `Config` for a network that is not that of part 0; `Lost`, where a part has gone; what a device or an engine refuses.
pub fn join(
    config: &Config,
    part: usize,
    parts: usize,
    place: &str,
    (backend, gpus, transport): (Backend, Option<usize>, Transport),
    progress: &dyn Progress,
) -> Result<()> {
    let settings = read(config)?;
    if part == 0 || part >= parts {
        return Err(Error::config(format!(
            "part {part} of {parts}: those that join are 1 to {}",
            parts.saturating_sub(1)
        )));
    }
    let plan = Plan::new(settings.network)?;
    let setup = Setup {
        part,
        parts,
        patience: PATIENCE,
        gathering: JOINED,
        key: std::env::var(KEY).unwrap_or_default(),
        fingerprint: fingerprint(&plan.network),
    };
    let named = |e: Error| {
        if e.to_string().contains(&format!("part {part} ")) { e } else { e.context(format!("part {part} of {parts}")) }
    };
    let backend = if backend == Backend::Auto && gpus.is_none() { Backend::Cpu } else { backend };
    let cards = part_devices(backend, gpus).map_err(named)?.1;
    let mut mesh = tcp::join(&setup, place).map_err(named)?;
    progress.log(&format!("part {part} of {parts} has joined part 0 at {place}"));
    let layout = Layout::from_bytes(&plan.network, &mesh.more).filter(|l| l.parts() == parts);
    let made = || -> Result<(Layout, Box<dyn PartEngine + '_>)> {
        let layout =
            layout.ok_or_else(|| Error::value("part 0 says nothing that makes sense of who has which cells"))?;
        let members = Members::new(&plan, &layout);
        let exchange = AllGather::new(mesh.spikes(), members, part, mesh.nodes);
        let engine = part_engine(&plan, &layout, part, &cards, (Some(Box::new(exchange)), transport), &|_, _| ())?;
        Ok((layout, engine))
    };
    let (layout, mut engine) = match made() {
        Ok(made) => made,
        Err(e) => {
            mesh.fail(&e);
            return Err(named(e));
        }
    };
    let mut link = mesh.control();
    serve(&plan, &layout, part, setup.fingerprint, &mut *engine, &mut link, &|| progress.interrupted())
        .map_err(named)?;
    // Its GPU leaves those of the others while they leave it.
    drop(engine);
    mesh.linger();
    Ok(())
}

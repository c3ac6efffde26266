//! What the command line understands.

use chronaxie::op::{Case, Precision};
use chronaxie::simulate::MOST_REPLICAS;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Neural dynamics on CUDA and the CPU: liquid time-constant networks, scans, and what trains them.
#[derive(Debug, Parser)]
#[command(name = "chronaxie", disable_version_flag = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub common: Common,
    /// Print the version; with --json also commit, driver, NVRTC and SIMD level
    #[arg(short = 'V', long)]
    pub version: bool,
    /// With --version: write JSON to FILE, or to standard output
    #[arg(long = "json", value_name = "FILE", num_args = 0..=1, default_missing_value = "-", requires = "version")]
    pub version_json: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What every command takes.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// No progress, no notes; errors only on standard error
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// More to say; twice: details [also: CHRONAXIE_LOG=off|error|warn|info|debug]
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Threads of CPU work [also: CHRONAXIE_NUM_THREADS; default: the cores of this process]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// Where results go beside the terminal.
#[derive(Debug, Args)]
pub(crate) struct Json {
    /// Write the results as JSON to FILE; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// What this machine can run on
    Devices(Devices),
    /// Hold every implementation against its float64 reference
    Check(Check),
    /// Time every implementation that passes its check
    Bench(Bench),
    /// Launches, registers, spills, shared memory, occupancy and roofline of a family, or of a configuration's training
    /// step; or the parts of a spiking network's step
    Profile(Profile),
    /// Compile every kernel; needs no GPU
    Compile(Compile),
    /// Train a model from a configuration file, into a folder
    Train(Train),
    /// Run a trained model on a file
    Predict(Predict),
    /// Simulate a spiking network from a configuration file, into a folder
    Simulate(Simulate),
    /// What a recording of spikes is like: rates, intervals, synchrony, bursts, entropy, mutual information; and its
    /// network's degrees and clustering
    Analyze(Analyze),
    /// Compare ways to share a network out among processes: cells and synapses of each, what lies between them, and what a
    /// step is expected to cost
    Partition(Partition),
    /// What a network would be on so many GPUs: memory, exchange and time of a step, and the real-time factor; needs no GPU
    Plan(Planned),
    /// Print a completion script for a shell
    Completions(Completions),
}

#[derive(Debug, Args)]
pub(crate) struct Devices {
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Families to check; none is all
    #[arg(value_name = "FAMILY")]
    pub families: Vec<String>,
    /// all, auto, cpu, cuda or cuda:N; under `all` a missing GPU is skipped, otherwise it is an error
    #[arg(long, env = "CHRONAXIE_BACKEND", default_value = "all")]
    pub backend: String,
    /// Only this case (sizes and options, as in B24_T8_D128_H64,unfolds=6); may be repeated
    #[arg(long = "case", value_name = "CASE")]
    pub cases: Vec<Case>,
    /// Runs whose bits must be equal
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..))]
    pub repeats: u32,
    /// The seed of the inputs
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Only every N-th case from the I-th on, as in 2/3: for several processes or machines
    #[arg(long, value_name = "I/N", value_parser = part)]
    pub part: Option<(usize, usize)>,
    #[command(flatten)]
    pub json: Json,
}

/// `2/3` as (2, 3).
fn part(text: &str) -> Result<(usize, usize), String> {
    let read = || {
        let (i, n) = text.split_once('/')?;
        Some((i.parse().ok()?, n.parse().ok()?))
    };
    read()
        .filter(|(i, n)| (1..=*n).contains(i))
        .ok_or_else(|| format!("`{text}` is not I/N with I from 1 to N, as in 2/3"))
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Families to time, those of spiking networks too (microcircuit, network, neuron_update, synaptic_delivery, stdp_update);
    /// none is all
    #[arg(value_name = "FAMILY")]
    pub families: Vec<String>,
    /// auto, cpu, cuda, cuda:N, or all for the CPU and the first GPU
    #[arg(long, env = "CHRONAXIE_BACKEND", default_value = "auto")]
    pub backend: String,
    /// Only this case, of any sizes (as in B24_T8_D128_H64,unfolds=6, 20000x1000_dt0.1 or full_dc,scale=0.2); may be repeated
    #[arg(long = "case", value_name = "CASE")]
    pub cases: Vec<Case>,
    /// exact or fast, for every case
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<Precision>,
    /// About how long the timed runs of a pass take together
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub seconds: f64,
    /// On a GPU: passes follow each other and find the caches as the last one left them; otherwise the second-level cache is
    /// overwritten before each that takes 20 us or more
    #[arg(long)]
    pub warm: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Profile {
    /// A family, or a configuration, of training or of a network, of which a step is profiled
    #[arg(value_name = "FAMILY|CONFIG.(toml|json)")]
    pub target: String,
    /// The case: of a family of any sizes [default: its first]; of a configuration another batch size or padded length,
    /// as in B64_T29 [default: its own, and the length of most batches]; the configuration of a network has none
    #[arg(long, value_name = "CASE")]
    pub case: Option<Case>,
    /// Override a value of the configuration, as in simulation.scale=0.1; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// GPUs that share the network of a configuration, from the backend's on; cases of networks have `gpus=N`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus: Option<u32>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, env = "CHRONAXIE_BACKEND", default_value = "auto")]
    pub backend: String,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Compile {
    /// Families whose kernels are compiled; none is all
    #[arg(value_name = "FAMILY")]
    pub families: Vec<String>,
    /// Architectures, as in sm_80,sm_90a [default: each of sm_75, sm_80, sm_89, sm_90a, sm_100a, sm_120 that the
    /// compiler knows]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub arch: Vec<String>,
    /// Print registers, spills and shared memory of each kernel; a spill is a failure
    #[arg(long)]
    pub report: bool,
    /// A spill is a failure
    #[arg(long)]
    pub deny_spills: bool,
    /// For each architecture only every N-th specialisation of each source, at least one, and for the next architecture
    /// others
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub one_in: u32,
    /// With --one-in: leave out only such specialisations as differ from one that is compiled in numbers alone; which those are
    /// changes with the source
    #[arg(long)]
    pub alike: bool,
    /// With --alike: at most N that do not differ in numbers alone of each source; which those are changes with the source
    #[arg(long, value_name = "N", default_value_t = u32::MAX, hide_default_value = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub kinds: u32,
    /// Only every N-th source; which those are changes with the sources, and each is in one of the N parts
    #[arg(long, value_name = "K/N", value_parser = part)]
    pub sources: Option<(usize, usize)>,
    /// Each specialisation that is so chosen for one of the architectures alone: they take turns, and which comes first changes
    /// with the source
    #[arg(long)]
    pub spread: bool,
    /// Write all cubins to one FILE, from which kernels run with the driver alone (CHRONAXIE_PACK)
    #[arg(long, value_name = "FILE")]
    pub pack: Option<PathBuf>,
    /// Write what the compiler saw to files in DIR
    #[arg(long, value_name = "DIR")]
    pub emit: Option<PathBuf>,
    /// The NVRTC to use: a file, or a folder that holds one
    #[arg(long, value_name = "PATH", env = "CHRONAXIE_NVRTC")]
    pub nvrtc: Option<PathBuf>,
    #[command(flatten)]
    pub json: Json,
}

/// What overrides a configuration.
#[derive(Debug, Args)]
pub(crate) struct TrainSettings {
    /// Override a value of the configuration, as in train.epochs=5; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// The seed of a run: it reproduces the run bit for bit
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// exact or fast
    #[arg(long, value_name = "PRECISION")]
    pub precision: Option<Precision>,
    /// Print the configuration with its defaults and overrides, and do nothing
    #[arg(long)]
    pub print_config: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Train {
    /// The configuration
    #[arg(value_name = "CONFIG.toml")]
    pub config: PathBuf,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, env = "CHRONAXIE_BACKEND", default_value = "auto")]
    pub backend: String,
    /// The folder of the run, new or empty [default: runs/<configuration>-<moment>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on from the checkpoint in the folder that --out names
    #[arg(long, requires = "out")]
    pub resume: bool,
    #[command(flatten)]
    pub settings: TrainSettings,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Predict {
    /// The folder of a run, or its model.safetensors
    #[arg(value_name = "MODEL_DIR")]
    pub model: PathBuf,
    /// The series: .ts, .csv or .tsv
    #[arg(value_name = "DATA")]
    pub data: PathBuf,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, env = "CHRONAXIE_BACKEND", default_value = "auto")]
    pub backend: String,
    #[command(flatten)]
    pub settings: TrainSettings,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Side {
    /// So many networks side by side in one run, with seeds from the configuration's on, each with the spikes of a run of its
    /// own in a folder of its own
    #[arg(long, value_name = "N", conflicts_with = "seeds", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub replicas: Option<u64>,
    /// Likewise, with these seeds, as in 1,5,9 or 1-8
    #[arg(long, value_name = "LIST", value_parser = seeds)]
    pub seeds: Option<Seeds>,
    /// Likewise, with each of these values, and every combination where it is repeated or there are seeds, as in
    /// population.0.parameters.I_e=350,375.5
    #[arg(long, value_name = "KEY=VALUES", value_parser = values)]
    pub grid: Vec<(String, Values)>,
}

/// A list of seeds, as one argument.
#[derive(Debug, Clone)]
pub(crate) struct Seeds(pub Vec<u64>);

/// The values of a key, as one argument.
#[derive(Debug, Clone)]
pub(crate) struct Values(pub Vec<String>);

/// `1,5,9` and `1-8`.
fn seeds(text: &str) -> Result<Seeds, String> {
    let mut all = Vec::new();
    for word in text.split(',') {
        let ends = word.trim().split_once('-').unwrap_or((word.trim(), word.trim()));
        match (ends.0.trim().parse::<u64>(), ends.1.trim().parse::<u64>()) {
            (Ok(low), Ok(high)) if low <= high && high - low < MOST_REPLICAS as u64 => all.extend(low..=high),
            _ => {
                return Err(format!(
                    "`{word}` is neither a seed nor a range of at most {MOST_REPLICAS}, as in 1,5,9 or 1-8"
                ));
            }
        }
        if all.len() > MOST_REPLICAS {
            return Err(format!("more than {MOST_REPLICAS} seeds"));
        }
    }
    Ok(Seeds(all))
}

/// `key=1,2.5`; commas within brackets and quotes are of a value.
fn values(text: &str) -> Result<(String, Values), String> {
    let Some((key, list)) =
        text.split_once('=').filter(|(key, list)| !key.trim().is_empty() && !list.trim().is_empty())
    else {
        return Err(format!("`{text}` is not KEY=VALUES, as in population.0.parameters.I_e=350,375.5"));
    };
    let (mut all, mut depth, mut quote) = (vec![String::new()], 0, None);
    for c in list.chars() {
        match c {
            '"' | '\'' if quote.is_none() => quote = Some(c),
            _ if quote == Some(c) => quote = None,
            '[' | '{' if quote.is_none() => depth += 1,
            ']' | '}' if quote.is_none() => depth -= 1,
            ',' if quote.is_none() && depth == 0 => {
                all.push(String::new());
                continue;
            }
            _ => {}
        }
        all.last_mut().expect("there is one").push(c);
    }
    match all.iter().any(|v| v.trim().is_empty()) {
        true => Err(format!("`{text}` has a value of nothing")),
        false => Ok((key.trim().to_owned(), Values(all.iter().map(|v| v.trim().to_owned()).collect()))),
    }
}

/// A span of model time as it was written: one below 0 is none, nor is another flag in its place.
fn span(text: &str) -> Result<String, String> {
    match text.trim().strip_prefix('-') {
        Some(_) => Err("a duration is a number of milliseconds from 0 on, or one with a unit as in 10s".to_owned()),
        None => Ok(text.to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// The configuration, TOML or JSON
    #[arg(value_name = "CONFIG.(toml|json)")]
    pub config: PathBuf,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, env = "CHRONAXIE_BACKEND", default_value = "auto")]
    pub backend: String,
    /// Model time in ms, or with a unit as in 10s
    #[arg(long, value_name = "MS", allow_hyphen_values = true, value_parser = span)]
    pub duration: Option<String>,
    /// The seed of the network and of its drives
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    pub seed: Option<u64>,
    /// A smaller network with the same statistics: this fraction of the cells, and of the synapses of each
    #[arg(long, value_name = "F", allow_negative_numbers = true)]
    pub scale: Option<f64>,
    /// What is kept [default: spikes]
    #[arg(long, value_name = "WHAT", value_parser = ["spikes", "none"])]
    pub record: Option<String>,
    /// The hash of all spikes, which one thread of the host makes, 7 to 20 ns a spike [default: sha256]
    #[arg(long, value_name = "WHAT", value_parser = ["sha256", "none"])]
    pub hash: Option<String>,
    /// The folder of the run, new or empty [default: runs/<configuration>-<moment>]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Model time between checkpoints, besides those at the end and where Ctrl-C, SIGTERM or SIGHUP stop it
    #[arg(long, value_name = "MS", allow_hyphen_values = true, value_parser = span)]
    pub checkpoint_every: Option<String>,
    /// Go on from a checkpoint: its file, or the folder of its run, which goes on there
    #[arg(long, value_name = "CHECKPOINT", conflicts_with = "out")]
    pub resume: Option<PathBuf>,
    /// GPUs of this machine to share the network among, from cuda:0 on; with --parts or --part, those of each part
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub gpus: Option<u32>,
    #[command(flatten)]
    pub side: Side,
    /// Processes to share the network among, on the CPU, or with --backend cuda each on a GPU; the spikes are the same for any number
    #[arg(long, value_name = "N", conflicts_with_all = ["replicas", "seeds", "grid"], value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub parts: Option<u32>,
    /// With --parts, --of or --gpus: how, as `chronaxie partition` names it; auto takes the way of least expected cost, of
    /// GPUs ranges of cells' numbers unless another way shares work out better
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub method: String,
    /// With --parts or --of: machines, or groups to be taken for some; parts of one tell each other first what fired
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub nodes: u32,
    /// With --parts or --part: how spikes go from one part to another. auto is NCCL where every part has GPUs of its own and finds the
    /// library, else the connections of the processes
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = ["auto", "tcp", "nccl"])]
    pub transport: String,
    /// For parts that are begun one by one, on several machines: this is part I of --of N, from 0
    #[arg(long, value_name = "I", requires = "of", requires = "join", conflicts_with_all = ["parts", "replicas", "seeds", "grid"])]
    pub part: Option<u32>,
    /// With --part: how many parts there are
    #[arg(long, value_name = "N", requires = "part", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub of: Option<u32>,
    /// With --part: where part 0 listens; all parts take the same configuration [also: CHRONAXIE_JOIN_KEY, a word that all
    /// parts know]
    #[arg(long, value_name = "HOST:PORT", requires = "part")]
    pub join: Option<String>,
    /// Override a value of the configuration, as in simulation.variant=dc; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the configuration with its defaults and overrides, and do nothing
    #[arg(long)]
    pub print_config: bool,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Analyze {
    /// The folder of a run, or an .npz or .parquet of spikes
    #[arg(value_name = "RECORDING")]
    pub recording: PathBuf,
    /// The configuration of the network [default: that of the run's folder]
    #[arg(long, value_name = "CONFIG.(toml|json)")]
    pub network: Option<PathBuf>,
    /// What counts, with the same numbers: auto, cpu, cuda or cuda:N
    #[arg(long, env = "CHRONAXIE_BACKEND", default_value = "auto")]
    pub backend: String,
    /// Left out at the start [default: as the run's configuration says, or 0]
    #[arg(long, value_name = "MS", allow_negative_numbers = true)]
    pub discard: Option<f64>,
    /// The width of the bins of counts
    #[arg(long, value_name = "MS", default_value_t = 2.0, allow_negative_numbers = true)]
    pub bin: f64,
    /// Spikes of a burst follow each other within this time
    #[arg(long, value_name = "MS", default_value_t = 10.0, allow_negative_numbers = true)]
    pub burst_interval: f64,
    /// A burst has at least so many spikes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..))]
    pub burst_spikes: u16,
    /// The folder of the pictures [default: analysis in the run's folder; of a file none are drawn]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Partition {
    /// The configuration, TOML or JSON
    #[arg(value_name = "CONFIG.(toml|json)")]
    pub config: PathBuf,
    /// How many parts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub parts: u32,
    /// One way: index, w_slice, morton, kmeans or metis; auto is all that apply
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub method: String,
    /// The rate of all cells but sources [default: that of the description, or 5]
    #[arg(long, value_name = "HZ")]
    pub rate: Option<f64>,
    /// The folder of a picture, new or empty [default: none is drawn]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Override a value of the configuration, as in simulation.scale=0.1; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Planned {
    /// The configuration, TOML or JSON
    #[arg(value_name = "CONFIG.(toml|json)")]
    pub config: PathBuf,
    /// The card: h200, or the one that --constants describes
    #[arg(long, value_name = "NAME")]
    pub gpu: String,
    #[command(flatten)]
    pub side: Side,
    /// How many of them; several numbers are compared, as in 1,2,4,8,64
    #[arg(long, value_name = "N", value_delimiter = ',', required = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub gpus: Vec<u32>,
    /// The rate of all cells but sources [default: that of the description, or 5]
    #[arg(long, value_name = "HZ")]
    pub rate: Option<f64>,
    /// Rates of populations, as in E=5.4,I=8; they win
    #[arg(long, value_name = "NAME=HZ", value_delimiter = ',')]
    pub rates: Vec<String>,
    /// How GPUs of a machine tell each other what fired: into each other's memory (peers), or through the host's
    #[arg(long, value_name = "HOW", value_parser = ["peers", "host"], default_value = "peers")]
    pub exchange: String,
    /// The constants of another card, TOML or JSON
    #[arg(long, value_name = "FILE")]
    pub constants: Option<PathBuf>,
    /// Override a value of the configuration, as in simulation.scale=0.1; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub json: Json,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

//! METIS: the least spikes from part to part, by multilevel partitioning of a graph (Karypis and Kumar, SIAM J. Sci. Comput.
//! 20, 1998). The library is opened when it is asked for; nothing of it is part of this program.
#![allow(unsafe_code)]

use super::graph::Graph;
use super::{Layout, Load, Partitioner};
use crate::{Error, Result};
use libloading::Library;
use std::ffi::{OsString, c_int, c_void};
use std::ptr::{null, null_mut};

/// A file to open instead of those that are looked for.
const VARIABLE: &str = "CHRONAXIE_METIS";
const NAMES: [&str; 4] = ["libmetis.so.5", "libmetis.so", "libmetis.dylib", "metis.dll"];
/// METIS_NOPTIONS.
const OPTIONS: usize = 40;

/// Likewise.
pub struct Metis;

impl Partitioner for Metis {
    fn name(&self) -> &'static str {
        "metis"
    }
    fn about(&self) -> &'static str {
        "the least spikes from part to part, by METIS"
    }
    fn needs_places(&self) -> bool {
        false
    }
    fn missing(&self) -> Option<Error> {
        open(std::env::var_os(VARIABLE)).err()
    }
    fn layout(&self, load: &Load<'_>, parts: usize) -> Result<Layout> {
        let library = open(std::env::var_os(VARIABLE))?;
        let graph = Graph::new(load);
        let of = match graph.work.len() {
            vertices if parts == 1 || vertices <= parts => (0..vertices as u32).map(|v| v % parts as u32).collect(),
            _ => partition(&library, &graph, parts)?,
        };
        let owners: Vec<Vec<u32>> =
            graph.of.iter().map(|cells| cells.iter().map(|v| of[*v as usize]).collect()).collect();
        Layout::from_owners(&load.plan.network, parts, &owners)
    }
}

pub(super) fn open(named: Option<OsString>) -> Result<Library> {
    let names: Vec<OsString> = match named.filter(|n| !n.is_empty()) {
        Some(name) => vec![name],
        None => NAMES.iter().map(OsString::from).collect(),
    };
    for name in &names {
        // SAFETY: a library runs its own constructors; that of METIS has none.
        if let Ok(library) = unsafe { Library::new(name) } {
            return Ok(library);
        }
    }
    let names: Vec<String> = names.iter().map(|n| n.to_string_lossy().into_owned()).collect();
    Err(Error::unavailable(format!(
        "METIS was not found: looked for {}; install it (Debian and Ubuntu: apt install libmetis5; conda: metis), or name the \
         file in {VARIABLE}",
        names.join(", ")
    )))
}

type SetDefaultOptions = unsafe extern "C" fn(*mut c_void) -> c_int;
/// nvtxs, ncon, xadj, adjncy, vwgt, vsize, adjwgt, nparts, tpwgts, ubvec, options, edgecut, part.
type PartGraph = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *const c_void,
    *const c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// The library's integer, of which it may have been built with either.
trait Index: Copy + Default + TryFrom<i64> + Into<i64> {}
impl Index for i32 {}
impl Index for i64 {}

fn partition(library: &Library, graph: &Graph, parts: usize) -> Result<Vec<u32>> {
    let missing =
        |name: &str| Error::unavailable(format!("{VARIABLE}: the library has no {name}, so it is not METIS 5"));
    // SAFETY: the names and signatures are those of metis.h, version 5.
    let set = unsafe { library.get::<SetDefaultOptions>(b"METIS_SetDefaultOptions\0") };
    let set = set.map_err(|_| missing("METIS_SetDefaultOptions"))?;
    // SAFETY: as above.
    let call = unsafe { library.get::<PartGraph>(b"METIS_PartGraphKway\0") };
    let call = call.map_err(|_| missing("METIS_PartGraphKway"))?;
    // Which integers it has is seen by how many bytes of options it fills.
    let mut options = [0x5555_5555_5555_5555i64; OPTIONS];
    // SAFETY: 40 integers of at most 8 bytes.
    unsafe { set(options.as_mut_ptr().cast()) };
    if options[OPTIONS - 1] == 0x5555_5555_5555_5555 {
        let mut options = [0i32; OPTIONS];
        // SAFETY: 40 integers of 4 bytes, as was seen.
        unsafe { set(options.as_mut_ptr().cast()) };
        run::<i32>(*call, &mut options, graph, parts)
    } else {
        run::<i64>(*call, &mut options, graph, parts)
    }
}

fn run<I: Index>(call: PartGraph, options: &mut [I; OPTIONS], graph: &Graph, parts: usize) -> Result<Vec<u32>> {
    let wide = |x: i64| I::try_from(x).unwrap_or_default();
    let vertices = graph.work.len();
    // Whole numbers whose sums stay within 31 bits.
    let scaled = |x: f64, total: f64, count: usize| {
        let most = 1e9 - count as f64;
        (x / total.max(f64::MIN_POSITIVE) * most.max(1.0)).round().max(1.0) as i64
    };
    let mut starts = vec![0i64; vertices + 1];
    for (a, b, _) in &graph.edges {
        starts[*a as usize + 1] += 1;
        starts[*b as usize + 1] += 1;
    }
    (0..vertices).for_each(|v| starts[v + 1] += starts[v]);
    let total: f64 = graph.edges.iter().map(|e| f64::from(e.2)).sum();
    let mut next = starts.clone();
    let mut neighbours = vec![I::default(); graph.edges.len() * 2];
    let mut weights = neighbours.clone();
    for (a, b, spikes) in &graph.edges {
        let weight = wide(scaled(f64::from(*spikes), total, graph.edges.len()));
        for (from, to) in [(*a, *b), (*b, *a)] {
            let at = &mut next[from as usize];
            neighbours[*at as usize] = wide(to.into());
            weights[*at as usize] = weight;
            *at += 1;
        }
    }
    let work: f64 = graph.work.iter().sum();
    let mut loads: Vec<I> = graph.work.iter().map(|w| wide(scaled(*w, work, vertices))).collect();
    let mut starts: Vec<I> = starts.into_iter().map(wide).collect();
    let (mut count, mut one, mut wanted, mut cut) = (wide(vertices as i64), wide(1), wide(parts as i64), I::default());
    let mut of = vec![I::default(); vertices];
    let pointer = |v: &mut [I]| v.as_mut_ptr().cast::<c_void>();
    // SAFETY: a graph of `vertices` vertices whose lists of neighbours lie between `starts`, each edge in two of them with one
    // weight; a weight a vertex; room for a part a vertex. Pointers that are null ask for defaults.
    let done = unsafe {
        call(
            pointer(std::slice::from_mut(&mut count)),
            pointer(std::slice::from_mut(&mut one)),
            pointer(&mut starts),
            pointer(&mut neighbours),
            pointer(&mut loads),
            null_mut(),
            pointer(&mut weights),
            pointer(std::slice::from_mut(&mut wanted)),
            null(),
            null(),
            pointer(options),
            pointer(std::slice::from_mut(&mut cut)),
            pointer(&mut of),
        )
    };
    if done != 1 {
        return Err(Error::value(format!("METIS gave up on a graph of {vertices} groups of cells, with code {done}")));
    }
    Ok(of.into_iter().map(|part| part.into().clamp(0, parts as i64 - 1) as u32).collect())
}

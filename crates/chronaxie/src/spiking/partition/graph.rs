//! A network as a graph of groups of cells, each edge with the spikes that go over it.

use super::Load;
use super::groups;
use super::sample;

/// Vertices at first.
const MOST: usize = 20_000;
/// Edges at the end: where there are more, neighbouring groups become one.
const EDGES: usize = 3_000_000;
/// Pairs that are gathered before those that are the same are added up.
const PENDING: usize = 1 << 23;

/// Groups of cells and what goes on between them.
pub(super) struct Graph {
    /// `[population][cell]`: the vertex of each.
    pub of: Vec<Vec<u32>>,
    /// ns a step, by vertex.
    pub work: Vec<f64>,
    /// `(vertex, vertex, spikes a step)`, the first below the second, sorted.
    pub edges: Vec<(u32, u32, f32)>,
}

fn add_up(pairs: &mut Vec<(u32, u32, f32)>) {
    pairs.sort_unstable_by_key(|p| (p.0, p.1));
    pairs.dedup_by(|b, a| {
        let same = (a.0, a.1) == (b.0, b.1);
        if same {
            a.2 += b.2;
        }
        same
    });
}

/// Halves the number of groups: those that follow each other become one.
fn halve(graph: &mut Graph) {
    graph.of.iter_mut().flatten().for_each(|v| *v /= 2);
    graph.work = graph.work.chunks(2).map(|w| w.iter().sum()).collect();
    graph.edges.iter_mut().for_each(|e| (e.0, e.1) = (e.0 / 2, e.1 / 2));
    graph.edges.retain(|e| e.0 != e.1);
    add_up(&mut graph.edges);
}

impl Graph {
    /// Of cells that follow each other along a curve through their places, or by their numbers.
    pub fn new(load: &Load<'_>) -> Self {
        let plan = load.plan;
        let n = &plan.network;
        let mut cells: Vec<(usize, u32)> =
            groups::along(plan).iter().map(|c| (c.population as usize, c.cell)).collect();
        let nowhere = n.populations.iter().enumerate().filter(|(_, p)| p.positions.is_none());
        cells.extend(nowhere.flat_map(|(i, p)| (0..p.size).map(move |cell| (i, cell))));
        let count = cells.len().min(MOST);
        let mut graph = Self {
            of: n.populations.iter().map(|p| vec![0; p.size as usize]).collect(),
            work: vec![0.0; count],
            edges: Vec::new(),
        };
        for (i, (population, cell)) in cells.iter().enumerate() {
            let group = i * count / cells.len();
            graph.of[*population][*cell as usize] = group as u32;
            graph.work[group] += load.work(*population, *cell);
        }
        drop(cells);
        let mut pending = 0;
        sample::each(plan, load.sampled(), &mut |s| {
            let p = &n.projections[s.projection];
            let (a, b) = (graph.of[p.source][s.source as usize], graph.of[p.target][s.target as usize]);
            if a == b {
                return;
            }
            graph.edges.push((a.min(b), a.max(b), (load.spikes(p.source) * s.count) as f32));
            pending += 1;
            if pending >= PENDING {
                add_up(&mut graph.edges);
                while graph.edges.len() > EDGES {
                    halve(&mut graph);
                }
                pending = 0;
            }
        });
        add_up(&mut graph.edges);
        while graph.edges.len() > EDGES {
            halve(&mut graph);
        }
        graph
    }
}

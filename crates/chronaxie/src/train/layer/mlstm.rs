//! The mLSTM in the trainer: linear maps of the input to queries, keys, values and gates, the matrix memory, and a map out of it.

use super::{Context, Stage, Tie, TrainableLayer};
use crate::Result;
use crate::config::Section;
use crate::layers::dense::{Channels, Dense};
use crate::layers::mlstm::{Gate, Mlstm, Wants};
use crate::op::{Tensors, Values};
use crate::rng::Rng;

/// The stream of a run's seed from which the layer's parameters are drawn.
const STREAM: u64 = 0x6d6c_7374_6d00;
/// The biases of forget gates, evenly from the first head's to the last one's: memories of some tens to some hundreds of steps.
const FORGET: [f64; 2] = [3.0, 6.0];

#[derive(Debug)]
pub(super) struct MlstmLayer {
    /// With B = T = 0.
    base: Mlstm,
    /// D.
    inputs: usize,
    /// M.
    outputs: usize,
}

impl MlstmLayer {
    pub(super) fn read(model: &Section<'_>, context: Context<'_>) -> Result<Self> {
        let counted = |key: &str, default: usize| match model.get(key, default)? {
            0 => Err(model.refuse(key, "must be at least 1, but it is 0")),
            n => Ok(n),
        };
        let gate: Gate = model.choice("gate", &["exp", "sig"], "exp")?.parse()?;
        let (heads, dqk, dv) = (counted("heads", 4)?, counted("key_size", 16)?, counted("value_size", 16)?);
        let outputs = counted("outputs", heads.saturating_mul(dv))?;
        let base = Mlstm::new(gate, [0, heads, 0, dqk, dv]);
        let base = Mlstm {
            normalize: model.get("normalize", base.normalize)?,
            chunk: model.optional("chunk")?,
            wants: Wants { inputs: true, gates: true, initial: false },
            ..base
        };
        let layer = Self { base: base.build()?, inputs: context.inputs, outputs };
        layer.stages(0, 0, true)?;
        Ok(layer)
    }

    /// What each map gives: its name, how many numbers, in how many groups.
    fn maps(&self) -> [(&'static str, Channels); 5] {
        let Mlstm { heads, dqk, dv, .. } = self.base;
        let grouped = |each: usize| Channels::grouped(heads.saturating_mul(each), heads);
        [("q", grouped(dqk)), ("k", grouped(dqk)), ("v", grouped(dv)), ("i", grouped(1)), ("f", grouped(1))]
    }
}

impl TrainableLayer for MlstmLayer {
    fn name(&self) -> &'static str {
        "mlstm"
    }
    fn features(&self) -> usize {
        self.outputs
    }
    fn stages(&self, batch: usize, steps: usize, backward: bool) -> Result<Vec<Stage>> {
        let mut stages = Vec::new();
        for (name, to) in self.maps() {
            let map = Dense::new(batch, steps, Channels::beside(self.inputs), to)?.with_grad_x(false);
            stages.push(Stage::new(name, map, &[("x", Tie::Value("x")), ("y", Tie::Value(name))]));
        }
        let memory = Mlstm { batch, steps, backward, ..self.base }.build()?;
        let read = self.maps().map(|(name, _)| (name, Tie::Value(name)));
        stages.push(Stage::new("memory", memory, &[&read[..], &[("h", Tie::Value("y"))]].concat()));
        let [_, _, (_, values), ..] = self.maps();
        let out = Dense::new(batch, steps, values, Channels::beside(self.outputs))?;
        stages.push(Stage::new("out", out, &[("x", Tie::Value("y")), ("y", Tie::Value("out"))]));
        Ok(stages)
    }
    fn initial(&self, seed: u64) -> Result<Tensors> {
        let (mut rng, mut all) = (Rng::new(seed, STREAM), Tensors::new());
        let values = self.base.heads * self.base.dv;
        let maps = self.maps().map(|(name, to)| (name, self.inputs, to.count));
        for (name, inputs, outputs) in maps.into_iter().chain([("out", values, self.outputs)]) {
            let bound = 1.0 / (inputs.max(1) as f64).sqrt();
            all.insert(format!("{name}.weight"), Values::from_fn([outputs, inputs], || rng.range(-bound, bound)));
            all.insert(format!("{name}.bias"), Values::from_fn([outputs], || rng.range(-bound, bound)));
        }
        if let Some(bias) = all.get_mut("f.bias") {
            let last = bias.data.len().saturating_sub(1).max(1) as f64;
            let between = |head: usize| FORGET[0] + (FORGET[1] - FORGET[0]) * head as f64 / last;
            bias.data.iter_mut().enumerate().for_each(|(head, b)| *b = between(head));
        }
        Ok(all)
    }
    fn prepared(&self) -> Tensors {
        Tensors::new()
    }
    fn decays(&self, parameter: &str) -> bool {
        parameter.ends_with(".weight")
    }
}

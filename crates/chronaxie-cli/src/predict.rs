//! `chronaxie predict MODEL_DIR DATA`: what a saved model says of each series.

use crate::Outcome;
use crate::args::{Common, Predict};
use crate::output::{Out, is_stdout, json_can_be_written, write_json};
use crate::progress::Terminal;
use crate::train::overrides;
use chronaxie::Backend;
use chronaxie::train::{model_config, predict_with, to_csv};
use serde_json::json;

pub(crate) fn run(args: &Predict, common: &Common, out: &mut Out) -> Outcome {
    let json = args.json.json.as_deref();
    json_can_be_written(json)?;
    let set = overrides(&args.settings);
    if args.settings.print_config {
        return out.bytes(model_config(&args.model, &set)?.as_bytes());
    }
    let progress = Terminal::new(common.quiet);
    let predictions = predict_with(&args.model, &args.data, args.backend.parse::<Backend>()?, &set, &progress)?;
    if !is_stdout(json) {
        out.bytes(to_csv(&predictions).as_bytes())?;
    }
    let records: Vec<_> =
        predictions.iter().map(|p| json!({ "index": p.index, "prediction": p.prediction, "score": p.score })).collect();
    write_json(json, &records, out)
}

//! What holds for every optimizer that a run can have: it learns, and resumes to the same bits on any number of threads.

use super::*;

/// The optimizers beside AdamW, each with turns that come within a few steps, at a rate that suits the small task.
const OPTIMIZERS: [(&str, f64, &str); 8] = [
    ("shampoo", 0.03, "max_preconditioner_dim = 4\nprecondition_frequency = 3\n"),
    (
        "shampoo",
        0.03,
        "start_preconditioning_step = 4\ngrafting = \"sgd\"\nexponent = \"1/3\"\nprecondition_vectors = false\n",
    ),
    ("soap", 0.01, "max_preconditioner_dim = 4\nprecondition_frequency = 3\n"),
    ("soap", 0.01, "merge_dims = true\nprecondition_vectors = true\nprecondition_frequency = 2\n"),
    ("muon", 0.02, "adamw_learning_rate = 0.01\nprecision = \"fast\"\n"),
    ("kfac", 0.1, "adamw_learning_rate = 0.03\ninverse_frequency = 3\nfactor_frequency = 2\n"),
    ("kfac", 0.1, "adamw_learning_rate = 0.03\ndamping_mode = \"factored\"\ndamping = 0.01\nsharing = \"reduce\"\n"),
    ("kfac", 0.1, "adamw_learning_rate = 0.03\nekfac = true\ninverse_frequency = 4\nterms = \"positions\"\n"),
];

fn text_of((name, rate, own): (&str, f64, &str), extra: &str) -> String {
    let text = config_text(&format!(
        "optimizer = \"{name}\"\nweight_decay_mode = \"corrected\"\n{extra}[train.{name}]\n{own}"
    ));
    text.replace("learning_rate = 0.03\n", &format!("learning_rate = {rate}\n"))
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_never_stopped_with_every_optimizer() {
    let scratch = setup("resume-optimizers");
    for (i, optimizer) in OPTIMIZERS.into_iter().enumerate() {
        let text = text_of(optimizer, "weight_decay = 0.1\n");
        let out = |what: &str| format!("{what}-{i}");
        train(&scratch, &text, &out("whole"), false, &Silent).unwrap();
        // 5 batches an epoch: stopped before the first step, before the roots' first step, and between turns.
        for stops in [vec![0], vec![3], vec![1, 1, 1, 1, 6]] {
            let name = out(&format!("stopped-{stops:?}"));
            for (k, &after) in stops.iter().enumerate() {
                train(&scratch, &text, &name, k > 0, &StopAfter::new(after)).unwrap_err();
            }
            crate::pool::set_num_threads(1 + stops.len() % 2);
            train(&scratch, &text, &name, true, &Silent).unwrap();
            assert!(model(&scratch, &name) == model(&scratch, &out("whole")), "{optimizer:?} {stops:?}");
        }
    }
}

#[test]
fn every_optimizer_learns() {
    let scratch = setup("learn-optimizers");
    for (i, optimizer) in OPTIMIZERS.into_iter().enumerate() {
        let text = text_of(optimizer, "").replace("epochs = 3", "epochs = 25");
        let report = train(&scratch, &text, &format!("out-{i}"), false, &Silent).unwrap();
        assert!(report.test_accuracy.unwrap() >= 0.85, "{optimizer:?}: {report:?}");
        let said = predict(&scratch.file(&format!("out-{i}")), &scratch.file("test.csv"), Backend::Cpu).unwrap();
        let right = said.iter().filter(|p| p.prediction == if p.index % 2 == 0 { "up" } else { "down" }).count();
        assert_eq!(right as f64 / said.len() as f64, report.test_accuracy.unwrap());
    }
}

/// The same on a GPU, where a run is also near the CPU's.
#[test]
fn on_a_gpu_every_optimizer_learns_and_resumes() {
    let Some(_gpu) = gpu() else { return };
    let scratch = setup("gpu-optimizers");
    let on_it = |text: &str, out: &str, resume: bool, progress: &dyn Progress| {
        let options = RunOptions::new(scratch.file(out)).backend(Backend::Cuda(0)).resume(resume);
        run(&config(&scratch, text), &options, progress)
    };
    for (i, optimizer) in OPTIMIZERS.into_iter().enumerate() {
        // The first factors are of eight rows. Their least eigenvalues are roundings, and so are the bases of these and what EKFAC sees in
        // them, on the CPU too; with this damping they have no part.
        let text =
            text_of(optimizer, "weight_decay = 0.1\n").replace("ekfac = true\n", "ekfac = true\ndamping = 0.1\n");
        let (whole, stopped) = (format!("whole-{i}"), format!("stopped-{i}"));
        let there = on_it(&text, &whole, false, &Silent).unwrap();
        let here = train(&scratch, &text, &format!("cpu-{i}"), false, &Silent).unwrap();
        let loss = |r: &Report| r.train_loss;
        assert!((loss(&there) - loss(&here)).abs() < 0.05 * loss(&here), "{optimizer:?}: {there:?} {here:?}");
        on_it(&text, &stopped, false, &StopAfter::new(4)).unwrap_err();
        on_it(&text, &stopped, true, &Silent).unwrap();
        assert!(model(&scratch, &stopped) == model(&scratch, &whole), "{optimizer:?}");
    }
}

/// A checkpoint of one optimizer is none of another's: the configuration is not the same.
#[test]
fn a_checkpoint_of_another_optimizer_is_refused() {
    let scratch = setup("other-optimizer");
    train(&scratch, &config_text(""), "out", false, &StopAfter::new(4)).unwrap_err();
    let e = train(&scratch, &text_of(OPTIMIZERS[0], ""), "out", true, &Silent).unwrap_err();
    assert!(e.kind() == &ErrorKind::Checkpoint && e.to_string().contains("another configuration"), "{e}");
}

use std::path::PathBuf;

use chronaxie_runtime::{ErrorKind, Result};
use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Config {
    Config::parse(text, "run.toml").unwrap()
}

fn refusal<T: std::fmt::Debug>(result: Result<T>) -> String {
    result.expect_err("it should be refused").to_string()
}

const RUN: &str = "schema = 1\nseed = 7\n\n[train]\nepochs = 20\nlearning_rate = 1e-3\nsizes = [1, 2]\n[train.data]\npath = \"a.ts\"\n[[population]]\nsize = 10\n[[population]]\nsize = 20\n";

/// Asks for everything that `RUN` holds, and more.
fn ask(config: &Config) -> Result<()> {
    config.root().get("seed", 0u64)?;
    let train = config.table("train")?;
    train.get("epochs", 1u32)?;
    train.get("learning_rate", 1e-4f32)?;
    train.get("sizes", Vec::<usize>::new())?;
    train.get("shuffle", true)?;
    train.optional::<f64>("clip")?;
    train.table("data")?.require::<PathBuf>("path")?;
    train.table("schedule")?.choice("kind", &["cosine", "constant"], "cosine")?;
    for population in config.tables("population")? {
        population.require::<u32>("size")?;
        population.table("delay")?.get("mean", Milliseconds(1.5))?;
    }
    Ok(())
}

#[test]
fn values_come_from_the_file_or_the_default() {
    let config = parse(RUN);
    assert_eq!(config.root().get("seed", 0u64).unwrap(), 7);
    let train = config.table("train").unwrap();
    assert_eq!(train.get("learning_rate", 0.0f32).unwrap(), 1e-3);
    assert_eq!(train.get("epochs", 0.5f64).unwrap(), 20.0);
    assert_eq!(train.get("sizes", vec![0usize]).unwrap(), [1, 2]);
    assert_eq!(train.get("absent", "x".to_owned()).unwrap(), "x");
    assert_eq!(train.optional::<bool>("absent").unwrap(), None);
    assert!(train.contains("epochs") && !train.contains("absent"));
    let sizes: Vec<u32> = config.tables("population").unwrap().iter().map(|p| p.require("size").unwrap()).collect();
    assert_eq!(sizes, [10, 20]);
    assert_eq!(config.tables("none").unwrap().len(), 0);
    assert_eq!(config.sha256(), crate::data::sha256_hex(RUN.as_bytes()));
}

#[test]
fn the_resolved_text_holds_the_defaults_and_resolves_to_itself() {
    let mut config = parse(RUN);
    config.set("train.data.path=b.ts").unwrap();
    ask(&config).unwrap();
    config.finish().unwrap();
    let resolved = config.resolved();
    let expected = "schema = 1\nseed = 7\n\n[train]\nepochs = 20\nlearning_rate = 0.001\nsizes = [1, 2]\nshuffle = true\n\n[train.data]\npath = \"b.ts\"\n\n[train.schedule]\nkind = \"cosine\"\n\n[[population]]\nsize = 10\n\n[population.delay]\nmean = 1.5\n\n[[population]]\nsize = 20\n\n[population.delay]\nmean = 1.5\n";
    assert_eq!(resolved, expected);
    let again = parse(&resolved);
    ask(&again).unwrap();
    again.finish().unwrap();
    assert_eq!(again.resolved(), resolved);
}

#[test]
fn wrong_types_say_the_line() {
    let config = parse(
        "schema = 1\n[train]\nepochs = \"ten\"\nrate = nan\nseed = -1\nsizes = [1, \"x\"]\non = 1\nwhen = 2020-01-01\nbig = 1e300\npath = \"\"\n[train.sub]\n",
    );
    let train = config.table("train").unwrap();
    assert_eq!(
        refusal(train.get("epochs", 1u32)),
        "run.toml:3: train.epochs must be a whole number from 0 to 4294967295, but it is the string \"ten\""
    );
    assert_eq!(
        refusal(train.get("rate", 1.0)),
        "run.toml:4: train.rate must be a finite number, but it is the number NaN"
    );
    assert!(refusal(train.get("seed", 1u64)).ends_with("0 to 18446744073709551615, but it is the number -1"));
    assert!(refusal(train.get("rate", 1u32)).contains("run.toml:4: train.rate must be a whole number"));
    assert_eq!(
        refusal(train.get("sizes", vec![1i64])),
        "run.toml:6: train.sizes must be a list, each item a whole number from -9223372036854775808 to \
         9223372036854775807, but it is a list that holds the number 1 and 1 more"
    );
    assert_eq!(refusal(train.get("on", true)), "run.toml:7: train.on must be true or false, but it is the number 1");
    assert!(refusal(train.get("when", String::new())).ends_with("a string, but it is the date or time 2020-01-01"));
    assert!(refusal(train.get("big", 1f32)).contains("a finite number that fits in 32 bits"));
    assert!(refusal(train.get("path", PathBuf::new())).contains("names a file or a folder, but it is the string \"\""));
    assert!(refusal(train.get("sub", 1.0)).ends_with("but it is a table"));
    assert_eq!(
        refusal(train.table("epochs")),
        "run.toml:3: train.epochs must be a table, but it is the string \"ten\""
    );
    assert!(refusal(train.tables("on")).contains("run.toml:7: train.on must be a list of tables ([[on]])"));
    assert!(refusal(train.tables("sizes")).contains("but its item 0 is the number 1"));
    let error = train.get("on", true).unwrap_err();
    assert_eq!((error.kind(), error.exit_code()), (&ErrorKind::Config { line: Some(7) }, 2));
    assert_eq!(
        train.refuse("epochs", "must be at least 1, but it is 0").to_string(),
        "run.toml:3: train.epochs must be at least 1, but it is 0"
    );
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    let config = parse(
        "schema = 1\nsede = 3\n[train]\nlearnig_rate = 1\nzzzzzz = 1\n[trian]\n[[population]]\nsize = 1\n[[population]]\nsize = 1\nsice = 2\n",
    );
    ask(&parse(RUN)).unwrap();
    config.root().get("seed", 0u64).unwrap();
    config.table("train").unwrap().get("learning_rate", 0.1).unwrap();
    config.table("train").unwrap().get("epochs", 1u32).unwrap();
    config.tables("population").unwrap().iter().for_each(|population| _ = population.get("size", 1u32).unwrap());
    let error = config.finish().unwrap_err();
    let message = error.to_string();
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(
        lines,
        [
            "run.toml:2: unknown key sede; did you mean seed?",
            "run.toml:4: unknown key train.learnig_rate; did you mean learning_rate?",
            "run.toml:5: unknown key train.zzzzzz; known there: learning_rate, epochs",
            "run.toml:6: unknown key trian; did you mean train?",
            "run.toml:11: unknown key population[1].sice; did you mean size?",
        ]
    );
    assert_eq!(error.kind(), &ErrorKind::Config { line: Some(2) });
}

#[test]
fn missing_keys_name_their_table() {
    let config = parse("schema = 1\n[train]\ndta = \"a\"\n");
    let train = config.table("train").unwrap();
    assert_eq!(
        refusal(train.require::<String>("data")),
        "run.toml:2: table [train] lacks the required key data (a string); it has dta, is that meant?"
    );
    let model = config.table("model").unwrap();
    assert_eq!(
        refusal(model.require::<u32>("hidden")),
        "run.toml: table [model] lacks the required key hidden (a whole number from 0 to 4294967295); the table is \
         missing too"
    );
    let message = refusal(config.root().require::<bool>("x"));
    assert_eq!(message, "run.toml:1: the top of the file lacks the required key x (true or false)");
}

#[test]
fn durations_take_units() {
    for (text, expected) in [
        ("\"10s\"", Some(10_000.0)),
        ("\"500ms\"", Some(500.0)),
        ("\"1.5 min\"", Some(90_000.0)),
        ("\"2h\"", Some(7.2e6)),
        ("\"250us\"", Some(0.25)),
        ("\"1e3ms\"", Some(1000.0)),
        ("\"12\"", Some(12.0)),
        ("12", Some(12.0)),
        ("0.5", Some(0.5)),
        ("-1", None),
        ("\"-1s\"", None),
        ("\"s\"", None),
        ("\"10 parsecs\"", None),
        ("\"infs\"", None),
        ("inf", None),
        ("true", None),
    ] {
        let config = parse(&format!("schema = 1\nduration = {text}\n"));
        match (config.root().require::<Milliseconds>("duration"), expected) {
            (Ok(found), Some(expected)) => assert_eq!(found.0, expected, "{text}"),
            (Err(error), None) => assert!(
                error.to_string().starts_with("run.toml:2: duration must be a duration that is not negative"),
                "{error}"
            ),
            (found, expected) => panic!("{text}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn choices_suggest_the_nearest() {
    let config = parse("schema = 1\nmapping = \"afine\"\nkind = 3\n");
    let root = config.root();
    let choices = ["affine", "linear", "none"];
    assert_eq!(
        refusal(root.choice("mapping", &choices, "affine")),
        "run.toml:2: mapping must be one of \"affine\", \"linear\", \"none\", but it is the string \"afine\"; did you \
         mean \"affine\"?"
    );
    assert!(refusal(root.choice("kind", &choices, "none")).ends_with("but it is the number 3"));
    assert_eq!(root.choice("other", &choices, "none").unwrap(), "none");
}

#[test]
fn overrides_win() {
    let mut config = parse(RUN);
    for assignment in
        ["train.epochs=3", "train.note = two words", "model.cell.hidden=64", "population.1.size=5", "seed=\"9\"", "e="]
    {
        config.set(assignment).unwrap();
    }
    assert_eq!(config.table("train").unwrap().get("epochs", 0u32).unwrap(), 3);
    assert_eq!(config.table("train").unwrap().get("note", String::new()).unwrap(), "two words");
    assert_eq!(config.root().get("e", "x".to_owned()).unwrap(), "");
    let model = config.table("model").unwrap();
    assert_eq!(model.table("cell").unwrap().get("hidden", 0u32).unwrap(), 64);
    assert_eq!(config.tables("population").unwrap()[1].get("size", 0u32).unwrap(), 5);
    assert!(refusal(config.root().get("seed", 1u32)).starts_with("--set \"seed=\\\"9\\\"\": seed must be a whole"));
    let mut config = parse(RUN);
    config.set("train.epoch=3").unwrap();
    ask(&config).unwrap();
    let error = config.finish().unwrap_err();
    assert_eq!(error.to_string(), "--set \"train.epoch=3\": unknown key train.epoch; did you mean epochs?");
    assert_eq!(error.kind(), &ErrorKind::Config { line: None });
}

#[test]
fn wrong_overrides_are_refused_and_change_nothing() {
    let mut config = parse(RUN);
    let deep = format!("{}x=1", "a.".repeat(40));
    for (assignment, expected) in [
        ("epochs", "--set \"epochs\": write it as table.key=value"),
        ("=1", "--set \"=1\": \"\" is not a key"),
        ("a..b=1", "\"\" is not a key (letters, digits, '_' and '-')"),
        ("a b=1", "\"a b\" is not a key"),
        ("seed.x=1", "seed is the number 7, which holds no keys"),
        ("population.size=1", "population is a list of 2; name an item as population.0, from 0"),
        ("population.2.size=1", "population is a list of 2; name an item as population.0, from 0"),
        ("train.sizes.0.x=1", "train.sizes is the number 1, which holds no keys"),
        ("schema=2", "--set \"schema=2\": schema is the number 2, but this version reads schema = 1"),
        (deep.as_str(), "its 41 keys are nested deeper than 32 levels"),
    ] {
        let message = refusal(config.set(assignment));
        assert!(message.contains(expected), "{message}\n  should contain\n{expected}");
    }
    ask(&config).unwrap();
    config.finish().unwrap();
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    for (text, expected) in [
        ("", "run.toml:1: the file does not begin with schema = 1, which names its format"),
        ("schema = 2\n", "run.toml:1: schema is the number 2, but this version reads schema = 1"),
        ("schema = 1\n[train\n", "run.toml:2: "),
        ("schema = 1\na = 1\na = 2\n", "run.toml:3: duplicate key"),
        ("schema = 1\na = 99999999999999999999\n", "run.toml:2: the whole number 99999999999999999999 does not fit"),
    ] {
        let message = refusal(Config::parse(text, "run.toml"));
        assert!(message.starts_with(expected) && !message.contains('\n'), "{message}\n  should begin\n{expected}");
    }
    let deep = format!("schema = 1\nx = {}{}\n", "[".repeat(40), "]".repeat(40));
    let message = refusal(Config::parse(&deep, "run.toml"));
    assert_eq!(message, "run.toml:2: tables and lists are nested deeper than 32 levels");
    let deeper = format!("schema = 1\nx = {}", "[".repeat(100_000));
    assert!(refusal(Config::parse(&deeper, "run.toml")).starts_with("run.toml:2: "));
    let dotted = format!("schema = 1\n{}x = 1\n", "a.".repeat(50_000));
    let message = refusal(Config::parse(&dotted, "run.toml"));
    assert_eq!(message, "run.toml: recursion limit");
    let error = Config::read("no-such-folder/run.toml").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Io);
    let path = std::env::temp_dir().join(format!("chronaxie-config-{}.toml", std::process::id()));
    std::fs::write(&path, b"schema = 1\na = \"\xff\"\n").unwrap();
    let message = refusal(Config::read(&path));
    std::fs::remove_file(&path).unwrap();
    assert!(message.ends_with(".toml:2: the file is not UTF-8 text"), "{message}");
    assert!(Config::parse("\u{feff}schema = 1\r\n", "run.toml").is_ok());
}

proptest! {
    #[test]
    fn settings_survive_being_written(text in ".*", number in any::<f64>(), single in any::<f32>(), whole in any::<i64>(), key in "[a-z.\" é]{1,8}") {
        prop_assume!(number.is_finite() && single.is_finite() && key != "schema");
        let config = parse("schema = 1\n");
        let section = config.table(&key).unwrap();
        section.get("text", text.clone()).unwrap();
        section.get("number", number).unwrap();
        section.get("single", single).unwrap();
        section.get("whole", vec![whole]).unwrap();
        let again = parse(&config.resolved());
        let section = again.table(&key).unwrap();
        prop_assert_eq!(section.require::<String>("text").unwrap(), text);
        prop_assert_eq!(section.require::<f64>("number").unwrap(), number);
        prop_assert_eq!(section.require::<f32>("single").unwrap(), single);
        prop_assert_eq!(section.require::<Vec<i64>>("whole").unwrap(), [whole]);
        again.finish().unwrap();
    }

    #[test]
    fn no_override_panics(assignment in ".{0,40}", path in "[a-z.0-9]{0,12}") {
        let mut config = parse(RUN);
        let _ = config.set(&assignment);
        let _ = config.set(&format!("{path}={assignment}"));
        let _ = ask(&config);
        let _ = config.finish();
    }
}

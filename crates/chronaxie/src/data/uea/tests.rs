use std::path::Path;

use chronaxie_runtime::{Error, ErrorKind};
use proptest::prelude::*;

use super::*;

fn parse(text: impl AsRef<[u8]>) -> Result<Dataset, Error> {
    read_from(text.as_ref(), Path::new("a.ts"), None)
}

fn refusal(text: impl AsRef<[u8]>) -> String {
    parse(text).expect_err("it should be refused").to_string()
}

/// A file of two channels and the classes `u` and `v`; the first case is on line 5.
fn two_channels(cases: &str) -> String {
    format!("@univariate false\n@dimensions 2\n@classLabel true u v\n@data\n{cases}")
}

const STAMPED: &str = "@timeStamps true\n@dimensions 2\n@classLabel true u\n@data\n";

#[test]
fn cases_become_rows_of_time_steps() {
    let text = two_channels("# first\n1,2,3:4,5,6:v\n\n-1e-3, 2.5 :.5,+8: u");
    let data = parse(&text).unwrap();
    assert_eq!((data.channels, data.len(), data.longest()), (2, 2, 3));
    assert_eq!(data.series[0].values, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!((data.series[1].values.as_slice(), data.series[1].len), ([-1e-3, 0.5, 2.5, 8.0].as_slice(), 2));
    assert_eq!(data.target, Target::Classes { names: vec!["u".into(), "v".into()], labels: vec![1, 0] });
    assert_eq!(data.sha256, crate::data::sha256_hex(text.as_bytes()));
    assert_eq!(data.series[0].elapsed, None);
}

#[test]
fn the_hash_is_that_of_the_standard() {
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(crate::data::sha256_hex(b""), empty);
}

#[test]
fn letter_case_line_ends_and_marks_do_not_matter() {
    let plain = parse("@univariate true\n@classLabel true a\n@data\n1,2:a\n3:a\n").unwrap();
    let odd = parse(
        b"\xef\xbb\xbf# caf\xe9\r\n@UNIVARIATE TRUE\r\n@Extra x\r\n@classlabel true a\r\n@Data\r\n1,2:a\r\n3:a"
            .as_slice(),
    );
    let odd = odd.unwrap();
    assert_eq!((odd.series, odd.target, odd.channels), (plain.series, plain.target, plain.channels));
}

#[test]
fn regression_and_unlabelled_files_are_read() {
    let data = parse("@targetLabel true\n@data\n1,2:3,4:-0.5\n").unwrap();
    assert_eq!((data.target, data.channels), (Target::Values(vec![-0.5]), 2));
    let data = parse("@classLabel false\n@data\n1,2:3,4\n").unwrap();
    assert_eq!((data.target, data.channels), (Target::None, 2));
}

#[test]
fn time_stamps_become_elapsed_times() {
    let data = parse(format!("{STAMPED}(0,1.5), (0.5,2) ,(2,3):(0,4),(0.5,5),(2,6):u\n(7,1):(7,2):u\n")).unwrap();
    assert_eq!(data.series[0].values, [1.5, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(data.series[0].elapsed.as_deref(), Some([0.5, 0.5, 1.5].as_slice()));
    assert_eq!(data.series[1].elapsed.as_deref(), Some([1.0].as_slice()));
    let data = parse("@timeStamps true\n@classLabel false\n@data\n(0,1),(1,2)\n").unwrap();
    assert_eq!((data.channels, data.target), (1, Target::None));
}

#[test]
fn wrong_cases_are_refused_with_their_line() {
    let long = "x".repeat(50);
    for (cases, expected) in [
        ("1,2:3,4:u\n1,2:3,?:v", "a.ts:6: case 2: channel 2, position 2: the value is missing (\"?\"); fill it in"),
        ("1,NaN:3,4:u", "a.ts:5: case 1: channel 1, position 2: the value is missing (\"NaN\")"),
        ("1,:3,4:u", "a.ts:5: case 1: channel 1, position 2: the value is missing (\"\")"),
        ("1,2:3,4:w", "a.ts:5: case 1: class label \"w\" is not among the classes of @classLabel: u, v"),
        ("1,2:3,4:", "a.ts:5: case 1: class label \"\" is not among the classes of @classLabel: u, v"),
        ("1,2:3:u", "a.ts:5: case 1: channel 2 has 1 values, but channel 1 has 2"),
        ("1,2:3,4:5,6:u", "a.ts:5: case 1: it has 3 channels, but the header's @dimensions says 2"),
        ("1,2:3,4", "a.ts:5: case 1: it has 1 channels, but the header's @dimensions says 2"),
        ("1,2", "a.ts:5: case 1: no ':' separates the values from what is to be predicted"),
        ("1,2:3,4x:u", "a.ts:5: case 1: channel 2, position 2: \"4x\" is not a number"),
        (&format!("1,{long}:3,4:u"), &format!("position 2: \"{}\"... is not a number", &long[..40])),
        ("1,inf:3,4:u", "a.ts:5: case 1: channel 1, position 2: \"inf\" is infinite, or beyond the range"),
        ("1,1e39:3,4:u", "a.ts:5: case 1: channel 1, position 2: \"1e39\" is infinite, or beyond the range"),
        ("# only\n", "a.ts: no case follows @data"),
    ] {
        let message = refusal(two_channels(cases));
        assert!(message.contains(expected), "{message}\n  should contain\n{expected}");
        assert!(!message.contains('\n'));
    }
    let error = parse(two_channels("1,2:3,4:w")).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Data { path: "a.ts".into(), line: Some(5) });
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn wrong_time_stamps_are_refused_with_their_line() {
    for (cases, expected) in [
        ("1,2:3,4:u", "a.ts:5: case 1: with @timeStamps true it begins with (time,value), not \"1,2:3,4:u\""),
        ("(0,1),(0,2):(0,1),(0,2):u", "a.ts:5: case 1: position 2: its time 0 does not come after 0"),
        ("(0,1):(1,2):u", "a.ts:5: case 1: channel 2, position 1: its time is 1, but channel 1 has 0"),
        ("(0,1),(1,2):(0,2):u", "a.ts:5: case 1: channel 2 has 1 values, but channel 1 has 2"),
        ("(2004-10-01 12:00:00,1):(0,2):u", "the time stamp \"2004-10-01 12:00:00\" is not a finite number (dates are"),
        ("(0,?):(0,2):u", "a.ts:5: case 1: channel 1, position 1: the value is missing (\"?\")"),
        ("(0;1):(0,2):u", "channel 1, position 1: \"0;1\" is not a pair (time,value)"),
        ("(0,1", "channel 1, position 1: \"(0,1\" is not a pair (time,value)"),
        ("(0,1),5:u", "channel 1, position 2: \"5:u\" is not a pair (time,value)"),
        ("(0,1)(1,2):u", "channel 1, position 1: \"(1,2):u\" follows the pair instead of ',' or ':'"),
        ("(0,1):(0,2)", "a.ts:5: case 1: what is to be predicted is missing at its end"),
        ("(0,1):u", "a.ts:5: case 1: it has 1 channels, but the header's @dimensions says 2"),
    ] {
        let message = refusal(format!("{STAMPED}{cases}"));
        assert!(message.contains(expected), "{message}\n  should contain\n{expected}");
    }
    let message = refusal("@timeStamps true\n@data\n(0,1):u\n");
    assert_eq!(message, "a.ts:3: case 1: \"u\" follows the last channel");
}

#[test]
fn wrong_headers_are_refused_with_their_line() {
    for (text, expected) in [
        ("", "a.ts: the file is empty"),
        ("@classLabel true a\n", "a.ts: the file has no @data, so it holds no cases"),
        ("1,2,3\n", "a.ts:1: \"1,2,3\" comes before @data, but is neither a tag (@...) nor a comment (#)"),
        ("@clasLabel true a\n", "a.ts:1: unknown tag \"@clasLabel\"; did you mean @classLabel?"),
        ("@missing false\n@Missing false\n", "a.ts:2: \"@Missing\" comes twice in the header"),
        ("@dimension 2\n@dimensions 3\n", "a.ts:2: \"@dimensions\" comes twice in the header"),
        ("@timeStamps maybe\n", "a.ts:1: @timeStamps takes true or false, not \"maybe\""),
        ("@dimensions 0\n", "a.ts:1: @dimensions takes a whole number from 1, not \"0\""),
        ("@dimensions 99999999999999999999\n", "a.ts:1: @dimensions takes a whole number from 1, not \"9999"),
        ("@seriesLength\n", "a.ts:1: @seriesLength takes a whole number from 1, not \"\""),
        ("@classLabel true\n", "a.ts:1: @classLabel true lists no classes"),
        ("@classLabel true a b a\n@data\n", "a.ts:2: @classLabel lists the class \"a\" twice"),
        ("@classLabel true a\n@targetLabel true\n@data\n", "a.ts:3: the header says both @classLabel true and"),
        ("@univariate true\n@dimensions 3\n@data\n", "a.ts:3: the header says @univariate true, but also 3 dimensions"),
        ("@data 1\n", "a.ts:1: \"1\" follows @data on its line"),
    ] {
        let message = refusal(text);
        assert!(message.contains(expected), "{message}\n  should contain\n{expected}");
    }
}

#[test]
fn lengths_and_channels_keep_the_promises_of_the_file() {
    let message = refusal("@equalLength true\n@data\n1,2\n1,2,3\n");
    assert_eq!(message, "a.ts:4: case 2: it has 3 time steps, but case 1 has 2 and @equalLength is true");
    let message = refusal("@seriesLength 3\n@data\n1,2\n");
    assert_eq!(message, "a.ts:3: case 1: it has 2 time steps, but @seriesLength says 3");
    assert!(parse("@seriesLength 3\n@equalLength false\n@data\n1,2\n").is_ok());
    let message = refusal("@data\n1,2:3,4\n1,2\n");
    assert_eq!(message, "a.ts:3: case 2: it has 1 channels, but case 1 says 2");
    let message = refusal("@targetLabel true\n@data\n1,2:high\n");
    assert_eq!(message, "a.ts:3: case 1: the target: \"high\" is not a number");
}

#[test]
fn binary_files_are_refused_with_their_line() {
    let message = refusal(b"@data\n1,2\n3\0\n".as_slice());
    assert_eq!(message, "a.ts:3: a zero byte: this is a binary file, not text");
    let message = refusal(b"@data\n1,\xff\n".as_slice());
    assert_eq!(message, "a.ts:2: the line is not UTF-8 text; is this a binary file?");
}

#[test]
fn a_line_without_end_is_refused() {
    let text = b"@data\n1,2\n3,4,5,6,7,8,9\n".as_slice();
    let mut lines = Lines {
        reader: BufReader::with_capacity(4, Source::new(text, 8)),
        path: Path::new("a.ts"),
        number: 0,
        text: Vec::new(),
        done: false,
    };
    assert!(lines.advance().unwrap() && lines.advance().unwrap());
    let message = lines.advance().unwrap_err().to_string();
    assert_eq!(message, "a.ts:3: a line, or a quoted field, is longer than 8 bytes");
}

#[test]
fn labels_follow_the_training_set() {
    let classes = ["v".to_owned(), "u".to_owned()];
    let read = |text: &str| read_from(text.as_bytes(), Path::new("b.ts"), Some(&classes));
    let data = read(&two_channels("1:2:u\n1:2:v\n")).unwrap();
    assert_eq!(data.target, Target::Classes { names: classes.to_vec(), labels: vec![1, 0] });
    let message = read("@classLabel true u w\n@data\n1:u\n2:w\n").unwrap_err().to_string();
    assert_eq!(message, "b.ts:4: case 2: class label \"w\" is not among the classes of the training set: v, u");
    let message = read("@classLabel true u\n@data\n2:v\n").unwrap_err().to_string();
    assert_eq!(message, "b.ts:3: case 1: class label \"v\" is not among the classes of @classLabel: u");
    let message = read("@targetLabel true\n@data\n2:1\n").unwrap_err().to_string();
    assert!(message.starts_with("b.ts:2: @targetLabel makes this a file for regression"), "{message}");
    assert_eq!(read("@classLabel false\n@data\n1,2\n").unwrap().target, Target::None);
    let many: Vec<String> = (0..50).map(|class| class.to_string()).collect();
    let message = read_from(b"@classLabel true x\n@data\n1:x\n".as_slice(), Path::new("b.ts"), Some(&many));
    assert!(message.unwrap_err().to_string().ends_with("18, 19 and 30 more"));
}

#[test]
fn a_missing_file_is_an_io_error() {
    let error = read("no-such-folder/a.ts").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Io);
    assert!(error.to_string().starts_with("cannot open no-such-folder/a.ts: "), "{error}");
}

#[test]
fn the_japanese_vowels_are_what_their_header_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data/japanese-vowels");
    let train = read(folder.join("JapaneseVowels_TRAIN.ts")).unwrap();
    let Target::Classes { names, labels } = &train.target else { panic!("the file has classes") };
    assert_eq!((train.len(), train.channels, names.len(), train.longest()), (270, 12, 9, 26));
    assert!((0..9).all(|class| labels.iter().filter(|label| **label == class).count() == 30));
    assert_eq!(train.series[0].values[..2], [1.860936, -0.207383]);
    let test = read_with_classes(folder.join("JapaneseVowels_TEST.ts"), names).unwrap();
    assert_eq!((test.len(), test.channels, test.longest()), (370, 12, 29));
}

/// Series of finite values: `[T, D]` each, with a label below `classes`.
pub(crate) fn any_series(classes: u32) -> impl Strategy<Value = (usize, Vec<(Vec<f32>, u32)>)> {
    (1usize..4).prop_flat_map(move |channels| {
        let value = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite());
        let series = (1usize..6).prop_flat_map(move |len| prop::collection::vec(value.clone(), len * channels));
        (Just(channels), prop::collection::vec((series, 0..classes), 1..6))
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read((channels, cases) in any_series(3), stamped in any::<bool>()) {
        let names = ["a", "b", "c"];
        let mut text = format!("@timeStamps {stamped}\n@dimensions {channels}\n@classLabel true a b c\n@data\n");
        for (values, label) in &cases {
            let steps = values.len() / channels;
            for channel in 0..channels {
                let values: Vec<String> = (0..steps)
                    .map(|step| (step, values[step * channels + channel]))
                    .map(|(step, value)| if stamped { format!("({},{value})", step * 2) } else { value.to_string() })
                    .collect();
                text += &format!("{}:", values.join(","));
            }
            text += &format!("{}\n", names[*label as usize]);
        }
        let data = parse(&text).unwrap();
        prop_assert_eq!(data.channels, channels);
        let expected = Target::Classes {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            labels: cases.iter().map(|(_, label)| *label).collect(),
        };
        prop_assert_eq!(&data.target, &expected);
        for (series, (values, _)) in data.series.iter().zip(&cases) {
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&series.values), bits(values));
            prop_assert_eq!(series.elapsed.is_some(), stamped);
            if let [_, rest @ ..] = series.elapsed.as_deref().unwrap_or(&[]) {
                prop_assert!(rest.iter().all(|step| *step == 2.0));
            }
        }
    }

    #[test]
    fn no_bytes_panic(tail in prop::collection::vec(any::<u8>(), 0..200), stamped in any::<bool>()) {
        let mut text = if stamped { STAMPED.to_owned() } else { two_channels("") }.into_bytes();
        text.extend(tail);
        let _ = parse(&text);
    }
}

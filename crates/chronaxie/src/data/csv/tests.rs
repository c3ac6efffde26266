use std::path::Path;

use chronaxie_runtime::{Error, ErrorKind};
use proptest::prelude::*;

use super::*;
use crate::data::uea::tests::any_series;

fn options(layout: CsvLayout) -> CsvOptions {
    CsvOptions::new(layout)
}

fn parse(text: impl AsRef<[u8]>, options: &CsvOptions) -> Result<Dataset, Error> {
    read_from(text.as_ref(), Path::new("a.csv"), options, None)
}

fn refusal(text: impl AsRef<[u8]>, options: &CsvOptions) -> String {
    parse(text, options).expect_err("it should be refused").to_string()
}

fn classes(names: &[&str], labels: &[u32]) -> Target {
    Target::Classes { names: names.iter().map(|name| (*name).to_owned()).collect(), labels: labels.to_vec() }
}

#[test]
fn a_wide_row_is_a_series() {
    let text = "\u{feff}v1,label,v2\r\n1.5, b ,2\r\n\r\n3,a,-4e-1";
    let data = parse(text, &options(CsvLayout::Wide)).unwrap();
    assert_eq!((data.channels, data.len()), (1, 2));
    assert_eq!(data.series[0].values, [1.5, 2.0]);
    assert_eq!(data.series[1].values, [3.0, -0.4]);
    assert_eq!(data.target, classes(&["a", "b"], &[1, 0]));
    assert_eq!(data.sha256, crate::data::sha256_hex(text.as_bytes()));
}

#[test]
fn classes_are_sorted_by_number_where_all_are_numbers() {
    let data = parse("label,v\n10,1\n9,2\n10,3\n", &options(CsvLayout::Wide)).unwrap();
    assert_eq!(data.target, classes(&["9", "10"], &[1, 0, 1]));
    let data = parse("label,v\n10,1\n9,2\nx,3\n", &options(CsvLayout::Wide)).unwrap();
    assert_eq!(data.target, classes(&["10", "9", "x"], &[0, 1, 2]));
}

#[test]
fn long_rows_are_time_steps() {
    let text = "series,time,x,y,label\n1,0,1,2,a\n1,0.5,3,4,a\n1,2,5,6,a\n2,9,7,8,b\n";
    let data = parse(text, &options(CsvLayout::Long)).unwrap();
    assert_eq!((data.channels, data.len()), (2, 2));
    assert_eq!(data.series[0].values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(data.series[0].elapsed.as_deref(), Some([0.5, 0.5, 1.5].as_slice()));
    assert_eq!((data.series[1].len, data.series[1].elapsed.as_deref()), (1, Some([1.0].as_slice())));
    assert_eq!(data.target, classes(&["a", "b"], &[0, 1]));
}

#[test]
fn names_delimiters_and_targets_are_options() {
    let own = options(CsvLayout::Long)
        .with_delimiter(b'\t')
        .with_series("id")
        .with_time("t")
        .with_target(CsvTarget::Value("y".into()));
    let data = parse("id\tt\tx\ty\n1\t0\t5\t0.5\n1\t1\t6\t0.5\n", &own).unwrap();
    assert_eq!((data.target, data.series[0].values.as_slice()), (Target::Values(vec![0.5]), [5.0, 6.0].as_slice()));
    let none = options(CsvLayout::Wide).with_target(CsvTarget::None);
    let data = parse("v1,v2\n1,2\n", &none).unwrap();
    assert_eq!((data.target, data.series[0].values.as_slice()), (Target::None, [1.0, 2.0].as_slice()));
    let without_times = parse("series,x,label\n1,5,a\n", &options(CsvLayout::Long)).unwrap();
    assert_eq!(without_times.series[0].elapsed, None);
}

#[test]
fn wrong_wide_rows_are_refused_with_their_line() {
    let wide = options(CsvLayout::Wide);
    for (text, expected) in [
        ("", "a.csv: the file is empty"),
        ("\n\n", "the file has no header row"),
        ("label,v\n", "a.csv: no row follows the header"),
        ("label,v\na,1\nb,1,2\n", "a.csv:3: the row has 3 fields, but the header has 2"),
        ("label,v\na\n", "a.csv:2: the row has 1 fields, but the header has 2"),
        ("label,v\n\n\na,?\n", "a.csv:4: column 2 (\"v\"): the value is missing (\"?\")"),
        ("label,v\r\na,1\r\nb,?\r\n", "a.csv:3: column 2 (\"v\"): the value is missing"),
        ("label,v\n\"a\nb\",1\n\r\n\"c\nd\",?", "a.csv:5: column 2 (\"v\"): the value is missing"),
        ("label,v\na,\n", "a.csv:2: column 2 (\"v\"): the value is missing (\"\")"),
        ("label,v\na,nan\n", "a.csv:2: column 2 (\"v\"): the value is missing (\"nan\")"),
        ("label,v\na,1.2.3\n", "a.csv:2: column 2 (\"v\"): \"1.2.3\" is not a number"),
        ("label,v\na,-inf\n", "a.csv:2: column 2 (\"v\"): \"-inf\" is infinite"),
        ("label,v\n,1\n", "a.csv:2: the class label is missing"),
        ("lable,v\na,1\n", "a.csv:1: the header has no column \"label\" for the class labels; did you mean \"lable\"?"),
        ("x,v\n", "a.csv:1: the header has no column \"label\" for the class labels; the columns are \"x,v\""),
        ("label,v,v\n", "a.csv:1: the header names the column \"v\" twice"),
        ("label\na\n", "a.csv:1: the header has no column of values"),
    ] {
        let message = refusal(text, &wide);
        assert!(message.contains(expected), "{message}\n  should contain\n{expected}");
        assert!(!message.contains('\n'));
    }
    let error = parse("label,v\na,?\n", &wide).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Data { path: "a.csv".into(), line: Some(2) });
    let value = wide.clone().with_target(CsvTarget::Value("label".into()));
    assert_eq!(refusal("label,v\na,1\n", &value), "a.csv:2: the target: \"a\" is not a number");
    let message = refusal("label,v\na,1\n", &wide.with_delimiter(b'"'));
    assert_eq!(message, "csv: '\"' cannot separate fields; use one such as ',', ';' or a tab");
}

#[test]
fn wrong_long_rows_are_refused_with_their_line() {
    let long = options(CsvLayout::Long);
    for (rows, expected) in [
        ("1,0,5,a\n2,0,5,a\n1,1,5,a\n", "a.csv:4: series \"1\": its rows are apart; sort the file by series"),
        ("1,0,5,a\n1,1,5,b\n", "a.csv:3: series \"1\": its target is \"b\", but \"a\" on line 2"),
        ("1,0,5,a\n1,0,5,a\n", "a.csv:3: series \"1\": its time 0 does not come after 0"),
        ("1,noon,5,a\n", "a.csv:2: series \"1\": the time stamp \"noon\" is not a finite number (dates are not read)"),
        (",0,5,a\n", "a.csv:2: the name of the series is missing"),
        ("1\n", "a.csv:2: the row has 1 fields, but the header has 4"),
        ("1,0,?,a\n", "a.csv:2: column 3 (\"x\"): the value is missing (\"?\")"),
    ] {
        let message = refusal(format!("series,time,x,label\n{rows}"), &long);
        assert!(message.contains(expected), "{message}\n  should contain\n{expected}");
    }
    let message = refusal("serie,x,label\n", &long);
    assert_eq!(message, "a.csv:1: the header has no column \"series\" for the series; did you mean \"serie\"?");
    let message = refusal("series,x,label\n", &long.clone().with_time("t"));
    assert!(message.starts_with("a.csv:1: the header has no column \"t\" for the times"), "{message}");
    let message = refusal("series,x,label\n", &long.with_series("label"));
    assert_eq!(message, "a.csv:1: the options give two roles to one column");
}

#[test]
fn binary_files_are_refused_with_their_line() {
    let wide = options(CsvLayout::Wide);
    let message = refusal(b"label,v\na,\0\n".as_slice(), &wide);
    assert_eq!(message, "a.csv:2: a zero byte: this is a binary file, not text");
    let message = refusal(b"label,v\na,\xff\n".as_slice(), &wide);
    assert_eq!(message, "a.csv:2: the row is not UTF-8 text; is this a binary file?");
    let message = refusal(b"label,v\r\na,1\r\n\r\na,\xff\r\n".as_slice(), &wide);
    assert_eq!(message, "a.csv:4: the row is not UTF-8 text; is this a binary file?");
}

#[test]
fn labels_follow_the_training_set() {
    let names = ["b".to_owned(), "a".to_owned()];
    let wide = options(CsvLayout::Wide);
    let read = |text: &str, options: &CsvOptions| read_from(text.as_bytes(), Path::new("b.csv"), options, Some(&names));
    assert_eq!(read("label,v\na,1\nb,1\n", &wide).unwrap().target, classes(&["b", "a"], &[1, 0]));
    let message = read("label,v\na,1\nc,1\n", &wide).unwrap_err().to_string();
    assert_eq!(message, "b.csv:3: class label \"c\" is not among the classes of the training set: b, a");
    let value = wide.with_target(CsvTarget::Value("label".into()));
    let message = read("label,v\n1,1\n", &value).unwrap_err().to_string();
    assert_eq!(message, "b.csv:1: column \"label\" is for regression, but the model tells classes apart");
}

#[test]
fn the_reader_goes_by_the_name_of_the_file() {
    let wide = options(CsvLayout::Wide);
    let message = crate::data::read("a.parquet", &wide, None).unwrap_err().to_string();
    assert_eq!(message, "a.parquet: the name ends in neither .ts (UEA archive) nor .csv or .tsv");
    for name in ["a.ts", "a.CSV", "a.tsv"] {
        let message = crate::data::read(format!("no-such-folder/{name}"), &wide, None).unwrap_err().to_string();
        assert!(message.starts_with(&format!("cannot open no-such-folder/{name}: ")), "{message}");
    }
}

#[test]
fn lines_are_counted_over_many_buffers() {
    let mut text = "label,v\r\n".to_owned();
    (0..50_000).for_each(|row| text += &format!("a,{row}\r\n"));
    text += "a,x\r\n";
    let message = refusal(text, &options(CsvLayout::Wide));
    assert_eq!(message, "a.csv:50002: column 2 (\"v\"): \"x\" is not a number");
}

proptest! {
    #[test]
    fn what_is_written_is_read((channels, series) in any_series(3)) {
        let names = ["a", "b,\"c\"", "d\ne"];
        let header: Vec<String> = (0..channels).map(|channel| format!("c{channel}")).collect();
        let mut text = format!("label,series,{}\n", header.join(","));
        for (id, (values, label)) in series.iter().enumerate() {
            let label = names[*label as usize].replace('"', "\"\"");
            for step in values.chunks(channels) {
                let step: Vec<String> = step.iter().map(f32::to_string).collect();
                text += &format!("\"{label}\",{id},{}\n", step.join(","));
            }
        }
        let data = parse(&text, &options(CsvLayout::Long)).unwrap();
        prop_assert_eq!((data.channels, data.len()), (channels, series.len()));
        let Target::Classes { names: found, labels } = &data.target else { panic!("there are classes") };
        for (at, (values, label)) in series.iter().enumerate() {
            prop_assert_eq!(&found[labels[at] as usize], names[*label as usize]);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&data.series[at].values), bits(values));
        }
    }

    #[test]
    fn no_bytes_panic(tail in prop::collection::vec(any::<u8>(), 0..200), long in any::<bool>()) {
        let mut text = b"series,time,x,label\n".to_vec();
        text.extend(tail);
        let _ = parse(&text, &options(if long { CsvLayout::Long } else { CsvLayout::Wide }));
    }
}

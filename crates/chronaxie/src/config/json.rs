//! JSON as a configuration: the same values as TOML, each with its line. `serde_json` keeps no places, hence a reader of
//! our own, for RFC 8259 without extensions.

use super::value::{Entry, MAX_DEPTH, Origin, Table, Value};

/// An offset into the text and a sentence.
type Refusal = (usize, String);

struct Reader<'a> {
    text: &'a str,
    at: usize,
    origin: &'a dyn Fn(usize) -> Origin,
}

/// Reads `text` whole, which must hold one object; `origin` gives the place of a byte offset.
pub(super) fn parse(text: &str, origin: &dyn Fn(usize) -> Origin) -> Result<Table, Refusal> {
    let mut reader = Reader { text, at: 0, origin };
    reader.blank();
    let start = reader.at;
    let Value::Table(table) = reader.value(0)? else {
        return Err((start, "the file must hold one object, in { }".into()));
    };
    reader.blank();
    if reader.at < text.len() { Err((reader.at, "there is more text after the object".into())) } else { Ok(table) }
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn refuse<T>(&self, message: impl Into<String>) -> Result<T, Refusal> {
        Err((self.at, message.into()))
    }

    fn expect(&mut self, byte: u8) -> Result<(), Refusal> {
        self.blank();
        if self.peek() != Some(byte) {
            let found = self.text[self.at..].chars().next().map_or("the end".into(), |c| format!("{c:?}"));
            return self.refuse(format!("{:?} is expected, but {found} is there", char::from(byte)));
        }
        self.at += 1;
        Ok(())
    }

    /// After an item: true where another follows, false at `close`.
    fn more(&mut self, close: u8) -> Result<bool, Refusal> {
        self.blank();
        if self.peek() == Some(b',') {
            self.at += 1;
            return Ok(true);
        }
        self.expect(close).map(|()| false)
    }

    fn closed(&mut self, close: u8) -> bool {
        self.blank();
        let closed = self.peek() == Some(close);
        self.at += usize::from(closed);
        closed
    }

    fn value(&mut self, depth: usize) -> Result<Value, Refusal> {
        if depth > MAX_DEPTH {
            return self.refuse(format!("tables and lists are nested deeper than {MAX_DEPTH} levels"));
        }
        self.blank();
        let words = [("true", Value::Boolean(true)), ("false", Value::Boolean(false))];
        match self.peek() {
            Some(b'{') => self.object(depth).map(Value::Table),
            Some(b'[') => self.array(depth).map(Value::Array),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => {
                for (word, value) in words {
                    if self.text[self.at..].starts_with(word) {
                        self.at += word.len();
                        return Ok(value);
                    }
                }
                if self.text[self.at..].starts_with("null") {
                    return self.refuse("null says nothing: leave the key out");
                }
                self.refuse("a value is expected")
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Table, Refusal> {
        let origin = (self.origin)(self.at);
        self.at += 1;
        let mut entries: Vec<Entry> = Vec::new();
        if self.closed(b'}') {
            return Ok(Table { origin, entries });
        }
        loop {
            self.blank();
            let start = self.at;
            if self.peek() != Some(b'"') {
                return self.refuse("a key in quotes is expected");
            }
            let key = self.string()?;
            if entries.iter().any(|entry| entry.key == key) {
                return Err((start, format!("the key {} stands twice in one object", super::quote(&key))));
            }
            self.expect(b':')?;
            let value = self.value(depth + 1)?;
            entries.push(Entry { key, origin: (self.origin)(start), value });
            if !self.more(b'}')? {
                return Ok(Table { origin, entries });
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Vec<Value>, Refusal> {
        self.at += 1;
        let mut items = Vec::new();
        if self.closed(b']') {
            return Ok(items);
        }
        loop {
            items.push(self.value(depth + 1)?);
            if !self.more(b']')? {
                return Ok(items);
            }
        }
    }

    fn number(&mut self) -> Result<Value, Refusal> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        let word = &rest[..end];
        let digits = word.strip_prefix('-').unwrap_or(word);
        let leading_zero = digits.len() > 1 && digits.starts_with('0') && !digits[1..].starts_with(['.', 'e', 'E']);
        let bare_point =
            digits.starts_with('.') || digits.contains(".e") || digits.contains(".E") || digits.ends_with('.');
        if leading_zero || bare_point || !digits.starts_with(|c: char| c.is_ascii_digit()) {
            return self.refuse(format!("{} is not a number of JSON", super::quote(word)));
        }
        let value = if digits.bytes().all(|b| b.is_ascii_digit()) {
            match word.parse::<i128>() {
                Ok(n) if (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&n) => Value::Integer(n),
                _ => return self.refuse(format!("the whole number {} does not fit in 64 bits", super::quote(word))),
            }
        } else {
            match word.parse::<f64>() {
                Ok(x) => Value::Float(x),
                Err(_) => return self.refuse(format!("{} is not a number of JSON", super::quote(word))),
            }
        };
        self.at += end;
        Ok(value)
    }

    fn string(&mut self) -> Result<String, Refusal> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let Some(c) = self.text[self.at..].chars().next() else {
                return self.refuse("the text ends inside a string");
            };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escape()?),
                c if u32::from(c) < 0x20 => {
                    self.at -= 1;
                    return self.refuse("a control character stands bare in a string; write it as \\u00..");
                }
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Refusal> {
        let escape = self.peek();
        self.at += usize::from(escape.is_some_and(|b| b.is_ascii()));
        Ok(match escape {
            Some(b @ (b'"' | b'\\' | b'/')) => char::from(b),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let mut units = vec![self.hex4()?];
                if (0xD800..0xDC00).contains(&units[0]) && self.text[self.at..].starts_with("\\u") {
                    self.at += 2;
                    units.push(self.hex4()?);
                }
                match char::decode_utf16(units).collect::<Result<Vec<_>, _>>().as_deref() {
                    Ok([c]) => *c,
                    _ => return self.refuse("a \\u escape that is half of a pair"),
                }
            }
            _ => return self.refuse("an unknown escape in a string"),
        })
    }

    fn hex4(&mut self) -> Result<u16, Refusal> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|d| u16::from_str_radix(d, 16).ok()) {
            Some(unit) => {
                self.at += 4;
                Ok(unit)
            }
            None => self.refuse("\\u needs four hexadecimal digits"),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn refusal(text: &str) -> String {
        Config::parse(text, "net.json").expect_err("it should be refused").to_string()
    }

    #[test]
    fn json_and_toml_hold_the_same() {
        let json = "{\n \"schema\": 1,\n \"t\": {\"a\": [1, -2.5e1, \"\\u00e9\\ud83d\\ude00\\n\"], \"b\": true},\n \"l\": [{}, {\"x\": 0.5}]\n}";
        let toml = "schema = 1\nl = [{}, {x = 0.5}]\n[t]\na = [1, -25.0, \"\u{e9}\u{1f600}\\n\"]\nb = true\n";
        let ask = |config: &Config| {
            let l: Vec<f64> = config.tables("l").unwrap().iter().map(|s| s.get("x", 0.25).unwrap()).collect();
            let t = config.table("t").unwrap();
            (l, t.get("b", false).unwrap(), t.contains("a"))
        };
        let (a, b) = (Config::parse(json, "net.json").unwrap(), Config::parse(toml, "net.toml").unwrap());
        assert_eq!(ask(&a), ask(&b));
        assert_eq!(ask(&a), (vec![0.25, 0.5], true, true));
    }

    #[test]
    fn wrong_json_is_refused_with_its_line() {
        for (text, says) in [
            ("", "net.json:1: a value is expected"),
            ("[1]", "must hold one object"),
            ("{\"schema\": 1}\n x", "net.json:2: there is more text"),
            ("{\"schema\": 1,\n\"a\": 01}", "net.json:2: \"01\" is not a number of JSON"),
            ("{\"schema\": 1,\n\"a\": 1.}", "is not a number of JSON"),
            ("{\"schema\": 1,\n\n\"a\": null}", "net.json:3: null says nothing"),
            ("{\"schema\": 1, \"schema\": 1}", "stands twice"),
            ("{\"schema\": 1, \"a\": \"\\ud800\"}", "half of a pair"),
            ("{\"schema\": 1, \"a\": \"x", "ends inside a string"),
            ("{\"schema\": 1 \"a\": 2}", "'}' is expected, but '\"' is there"),
            ("{\"schema\": 99999999999999999999}", "does not fit in 64 bits"),
            ("{\"a\": 1}", "schema"),
        ] {
            let e = refusal(text);
            assert!(e.contains(says), "{text:?}: {e}");
        }
        assert!(refusal(&format!("{{\"schema\": 1, \"a\": {}", "[".repeat(5000))).contains("nested deeper"));
    }

    #[test]
    fn no_text_makes_it_panic() {
        let good =
            "{\"schema\": 1, \"t\": {\"a\": [1, -2.5e1, \"\\u00e9\\ud83d\\ude00\u{e9}\"]}, \"l\": [{}, {\"x\": 0.5}]}";
        for end in (0..good.len()).filter(|end| good.is_char_boundary(*end)) {
            assert!(Config::parse(&good[..end], "net.json").is_err());
        }
        let mut rng = crate::rng::Rng::new(3, 0);
        let letters = b"{}[]\",:\\u0e.-+ \n\x00\xc3x19";
        for _ in 0..20_000 {
            let mut bytes = good.as_bytes().to_vec();
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = letters[rng.below(letters.len() as u64) as usize];
            }
            if let Ok(text) = std::str::from_utf8(&bytes) {
                let _ = Config::parse(text, "net.json");
            }
        }
    }
}

//! Apache Parquet: flat tables of numbers, as spikes and edge lists are. Read whole, written as a stream of row groups.
//!
//! Written: `DOUBLE`, `UINT_64`, `UINT_32` and text columns without missing values, plain or by a dictionary, not
//! compressed, with the least and greatest value of a row group and a checksum of each page. Read: integer and float columns as f64, plain or
//! by a dictionary, not compressed or by Snappy, in pages of both versions; whatever else a file may hold is refused in a
//! sentence. Nothing that a file holds makes it panic, or ask for memory beyond [`MOST_EXPANSION`] rows a byte.
//!
//! The format: <https://parquet.apache.org/docs/file-format/>.

mod read;
mod snappy;
#[cfg(test)]
mod tests;
mod thrift;
mod write;

pub use read::{MOST_EXPANSION, Table};
pub use write::{Column, Kind, Writer};

/// What a file begins and ends with.
const MAGIC: &[u8] = b"PAR1";

/// Numbers of the format's enumerations.
mod number {
    pub(super) const INT32: i32 = 1;
    pub(super) const INT64: i32 = 2;
    pub(super) const FLOAT: i32 = 4;
    pub(super) const DOUBLE: i32 = 5;
    pub(super) const BYTE_ARRAY: i32 = 6;

    pub(super) const PLAIN: i32 = 0;
    pub(super) const PLAIN_DICTIONARY: i32 = 2;
    pub(super) const RLE: i32 = 3;
    pub(super) const RLE_DICTIONARY: i32 = 8;

    pub(super) const UTF8: i32 = 0;
    pub(super) const UINT_8: i32 = 11;
    pub(super) const UINT_32: i32 = 13;
    pub(super) const UINT_64: i32 = 14;
    pub(super) const INT_64: i32 = 18;

    pub(super) const DATA_PAGE: i32 = 0;
    pub(super) const INDEX_PAGE: i32 = 1;
    pub(super) const DICTIONARY_PAGE: i32 = 2;
    pub(super) const DATA_PAGE_V2: i32 = 3;
}

/// The name of an enumeration's value in a message.
fn named(names: &[&str], value: i64) -> String {
    usize::try_from(value).ok().and_then(|i| names.get(i)).map_or(format!("number {value}"), |n| (*n).to_owned())
}

//! Reading and writing at a place of a file, by several threads at once.

use std::fs::File;
use std::io;

/// Writes all of `data` from byte `offset` of a file on, wherever the file stands.
///
/// # Errors
/// The system's.
#[cfg(unix)]
pub fn write_all_at(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, data, offset)
}

/// Writes all of `data` from byte `offset` of a file on.
///
/// # Errors
/// The system's.
#[cfg(windows)]
pub fn write_all_at(file: &File, mut data: &[u8], mut offset: u64) -> io::Result<()> {
    while !data.is_empty() {
        match std::os::windows::fs::FileExt::seek_write(file, data, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => (data, offset) = (&data[n..], offset + n as u64),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_at(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, data, offset)
}

#[cfg(windows)]
fn read_at(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, data, offset)
}

/// Fills `data` from byte `offset` of a file on as far as that goes, and says how far it is.
///
/// # Errors
/// The system's.
pub fn read_to_end_at(file: &File, data: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut count = 0;
    while count < data.len() {
        match read_at(file, &mut data[count..], offset + count as u64) {
            Ok(0) => break,
            Ok(n) => count += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(count)
}

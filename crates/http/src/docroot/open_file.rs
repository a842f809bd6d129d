//! A file that is open, with everything that is said of it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::coding::Coding;
use crate::select::{Representation, date_text};
use aws_lc_rs::digest::{SHA256, digest};
use becket_config::backend::Files;
use becket_config::glob;
use becket_sys::tree::{cached, read_cached};

/// A regular file, as it was when it was opened.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    /// Length in bytes.
    pub len: u64,
    modified: u64,
    etag: String,
    /// Lines that say what this is: type and coding.
    pub content: String,
    /// Lines that a client keeps with it: validators, how long it is fresh, by what it was chosen.
    pub kept: String,
}

impl OpenFile {
    /// A file that was found at `path`, or beside it, compressed.
    pub(super) fn new(
        (file, metadata): (File, &Metadata),
        path: &[u8],
        coding: Option<Coding>,
        keys: &Files,
    ) -> Self {
        let path = String::from_utf8_lossy(path);
        let suffix = coding.map_or("", Coding::suffix);
        let etag = format!("\"{}{suffix}\"", version(metadata));
        let modified = u64::try_from(metadata.mtime()).unwrap_or(0);
        let mut content = format!("Content-Type: {}\r\n", media_type(&path));
        if let Some(coding) = coding {
            content += &format!("Content-Encoding: {}\r\n", coding.name());
        }
        let mut kept = format!("ETag: {etag}\r\nLast-Modified: {}\r\n", date_text(modified));
        let rooted = format!("/{path}");
        let mut rules = keys.cache_control.iter();
        if let Some(rule) = rules.find(|rule| glob::matches(&rule.paths, &rooted)) {
            kept += &format!("Cache-Control: {}\r\n", rule.value.0);
        }
        if keys.precompressed {
            kept += "Vary: Accept-Encoding\r\n";
        }
        Self {
            file,
            len: metadata.len(),
            modified,
            etag,
            content,
            kept,
        }
    }

    /// The file as conditions see it.
    pub fn representation(&self) -> Representation<'_> {
        Representation {
            etag: &self.etag,
            modified: self.modified,
            len: self.len,
        }
    }

    /// Whether it is still the same file, unchanged.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.etag == other.etag && self.content == other.content
    }

    /// Reads what is in memory at a place; 0 is the end of the file.
    ///
    /// # Errors
    /// As [`read_cached`].
    pub fn read_cached(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        read_cached(&self.file, buffer, at)
    }

    /// Counts the bytes that are in memory from a place on; 0 is the end of the file.
    ///
    /// # Errors
    /// As [`cached`].
    pub fn cached(&self, at: u64, most: usize) -> io::Result<usize> {
        cached(&self.file, at, most)
    }

    /// The file, to be sent.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads so many bytes at a place, or fewer. Waits for the disk.
    ///
    /// # Errors
    /// What pread(2) says.
    pub fn read(&self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while filled < len {
            match self.file.read_at(&mut bytes[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}

/// A digest of what tells one content of a path from another. Length and modification time are not enough: archives and copies set that
/// time. No program sets the time of the last change of an inode. As a digest it shows clients nothing of the file system.
fn version(metadata: &Metadata) -> String {
    let facts = [
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        metadata.ctime().cast_unsigned(),
        metadata.ctime_nsec().cast_unsigned(),
        metadata.mtime().cast_unsigned(),
        metadata.mtime_nsec().cast_unsigned(),
    ];
    let digest = digest(&SHA256, facts.map(u64::to_le_bytes).as_flattened());
    let digits = digest.as_ref()[..16].iter();
    digits.map(|byte| format!("{byte:02x}")).collect()
}

/// The media type by the end of the name. Text is taken for UTF-8.
fn media_type(path: &str) -> String {
    let types = mime_guess::from_path(Path::new(path));
    match types.first_raw() {
        None => "application/octet-stream".to_owned(),
        // RFC 9239, section 6: the other one is obsolete.
        Some("application/javascript") => "text/javascript; charset=utf-8".to_owned(),
        Some(text) if text.starts_with("text/") => format!("{text}; charset=utf-8"),
        Some(other) => other.to_owned(),
    }
}

//! An open file, with its header fields.

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

#[derive(Debug)]
pub struct OpenFile {
    file: File,
    pub len: u64,
    modified: u64,
    etag: String,
    /// Header lines that describe the content: type and coding.
    pub content: String,
    /// Header lines that a client caches with the content: validators, lifetime, and `Vary`.
    pub kept: String,
}

impl OpenFile {
    /// Wraps an open file: the original at `path`, or its compressed variant.
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
            content += &format!("Content-Encoding: {}\r\n", coding.label());
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

    pub fn representation(&self) -> Representation<'_> {
        Representation {
            etag: &self.etag,
            modified: self.modified,
            len: self.len,
        }
    }

    /// Returns `true` if `other` is the same file with unchanged metadata.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.etag == other.etag && self.content == other.content
    }

    /// Reads bytes from offset `at` that are in memory, without waiting for the disk. Returns 0 at
    /// the end of the file.
    ///
    /// # Errors
    /// Returns the errors of [`read_cached`].
    pub fn read_cached(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        read_cached(&self.file, buffer, at)
    }

    /// Returns the number of bytes from offset `at` that are in memory; 0 at the end of the file.
    ///
    /// # Errors
    /// Returns the errors of [`cached`].
    pub fn cached(&self, at: u64, most: usize) -> io::Result<usize> {
        cached(&self.file, at, most)
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads `len` bytes at `at`, or fewer at the end of the file. Waits for the disk.
    ///
    /// # Errors
    /// Returns the errors of pread(2).
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

/// Returns a digest of a file's metadata that changes with the contents. Length and modification
/// time are not enough, since archives and copies set the modification time; no program can set the
/// change time of an inode. A digest reveals nothing about the file system to clients.
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

/// Returns the media type for the suffix of a name. Text is assumed to be UTF-8.
fn media_type(path: &str) -> String {
    let types = mime_guess::from_path(Path::new(path));
    match types.first_raw() {
        None => "application/octet-stream".to_owned(),
        // `application/javascript` is obsolete (RFC 9239, section 6).
        Some("application/javascript") => "text/javascript; charset=utf-8".to_owned(),
        Some(text) if text.starts_with("text/") => format!("{text}; charset=utf-8"),
        Some(other) => other.to_owned(),
    }
}

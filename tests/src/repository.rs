//! The files of the code base.

use std::io;
use std::path::{Path, PathBuf};

/// Folders that hold nothing of the code base: build output, stores, virtual environments.
const NOT_OURS: &[&str] = &["target", ".git", ".venv", "envace-store", "__pycache__", "node_modules"];

/// Endings of the files that are text; files without an ending, such as `LICENSE`, are text too.
const TEXT_ENDINGS: &[&str] = &[
    "css", "csv", "html", "jinja", "js", "json", "jsonl", "lock", "md", "py", "rs", "sh", "slt", "snap",
    "sql", "toml", "txt", "yaml", "yml",
];

/// A text file of the code base.
#[derive(Debug, Clone)]
pub struct TextFile {
    /// Path below the root, with `/` on every system.
    pub name: String,
    /// What it holds.
    pub text: String,
}

impl TextFile {
    /// Whether the name ends in `.` and one of `endings`.
    pub fn has_ending(&self, endings: &[&str]) -> bool {
        self.name.rsplit_once('.').is_some_and(|(_, ending)| endings.contains(&ending))
    }

    /// `name:line: text` of each line that `is_wrong`.
    pub fn lines_where(&self, is_wrong: impl Fn(&str) -> bool) -> Vec<String> {
        let lines = self.text.lines().enumerate().filter(|(_, line)| is_wrong(line));
        lines
            .map(|(index, line)| format!("{}:{}: {}", self.name, index + 1, shortened(line.trim())))
            .collect()
    }
}

/// The folder of the workspace's `Cargo.toml`.
pub fn root() -> PathBuf {
    let manifest_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_folder.parent().unwrap_or(manifest_folder).to_owned()
}

/// Every text file of the code base, by name.
///
/// The folder is walked, so that the answer is the same in a clone, in an unpacked archive, and before a commit.
///
/// # Errors
/// A folder or file that cannot be read, or a text file that is not UTF-8; the error names it.
pub fn text_files() -> io::Result<Vec<TextFile>> {
    let root = root();
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs_err::read_dir(&folder)? {
            let entry = entry?;
            let path = entry.path();
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !NOT_OURS.iter().any(|name| entry.file_name() == *name) {
                    folders.push(path);
                }
            } else if kind.is_file() && is_text(&path) {
                let text = fs_err::read_to_string(&path)?;
                let below = path.strip_prefix(&root).unwrap_or(&path);
                let parts: Vec<_> = below.iter().map(|part| part.to_string_lossy()).collect();
                files.push(TextFile { name: parts.join("/"), text });
            }
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

fn is_text(path: &Path) -> bool {
    path.extension().is_none_or(|ending| TEXT_ENDINGS.iter().any(|known| ending == *known))
}

fn shortened(line: &str) -> String {
    let mut text: String = line.chars().take(120).collect();
    if text.len() < line.len() {
        text.push('…');
    }
    text
}

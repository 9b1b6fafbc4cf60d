//! Shell commands that convert a file to UTF-8, for error messages.

use std::path::Path;

use super::source::{Compression, without_compression};
use rustyflow_base::shell_words::quoted;

/// The remedy for a file that is not UTF-8. The command writes a new file beside it, with its own name so that several
/// conversions do not collide; in a corpus folder, the new file is read instead of the old one.
pub(super) fn advice(path: &Path, is_pdf: bool) -> String {
    // A name that begins with a dash would be an option.
    let path = &if path.to_string_lossy().starts_with('-') { Path::new(".").join(path) } else { path.to_path_buf() };
    let shown = quoted(path);
    let output = quoted(&path.with_file_name(output_name(path)));
    let decompress = match without_compression(path).1 {
        Compression::None => None,
        Compression::Gzip => Some(format!("gzip -dc {shown} | ")),
        Compression::Zstandard => Some(format!("zstd -dc {shown} | ")),
    };
    let (before, input) = match &decompress {
        Some(command) => (command.as_str(), None),
        None => ("", Some(shown)),
    };
    if is_pdf {
        let input = input.unwrap_or_else(|| "-".into());
        return format!("it is a PDF; extract its text with `{before}pdftotext {input} {output}`");
    }
    // What most such texts are in; every byte stands for a character there.
    let input = input.map_or_else(String::new, |input| format!(" {input}"));
    format!("if it is in Latin 1, convert it with `{before}iconv -f LATIN1 -t UTF-8{input} > {output}`")
}

/// `notes.utf8.txt` of `notes.txt`, `notes.txt.gz` and `notes.pdf`; other endings say how a file is read and stay.
fn output_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let whole = match without_compression(path).1 {
        Compression::None => Path::new(&*name),
        Compression::Gzip | Compression::Zstandard => {
            Path::new(name.rsplit_once('.').map_or(&*name, |(whole, _)| whole))
        }
    };
    let stem = whole.file_stem().unwrap_or_default().to_string_lossy();
    match whole.extension().map(|ending| ending.to_string_lossy()) {
        Some(ending) if !ending.eq_ignore_ascii_case("pdf") => format!("{stem}.utf8.{ending}"),
        _ => format!("{stem}.utf8.txt"),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::process::Command;

    /// What is between the backticks.
    fn command(advice: &str) -> &str {
        advice.split('`').nth(1).unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn the_pasted_command_writes_the_text_beside_each_file() {
        let folder = tempfile::tempdir().unwrap();
        let latin = b"caf\xe9\n";
        let files = [
            ("plain.txt", latin.to_vec(), "plain.utf8.txt"),
            ("plain.md", latin.to_vec(), "plain.utf8.md"),
            ("with a blank & it's.txt", latin.to_vec(), "with a blank & it's.utf8.txt"),
            ("-dash.txt", latin.to_vec(), "-dash.utf8.txt"),
            ("$HOME `x`.txt", latin.to_vec(), "$HOME `x`.utf8.txt"),
            ("packed.txt.gz", gzip(latin), "packed.utf8.txt"),
            ("no ending", latin.to_vec(), "no ending.utf8.txt"),
        ];
        fs::create_dir(folder.path().join("sub folder")).unwrap();
        for parent in ["", "sub folder"] {
            for (name, bytes, output) in &files {
                let path = Path::new(parent).join(name);
                fs::write(folder.path().join(&path), bytes).unwrap();
                let advice = advice(&path, false);
                // A backtick in the name is within the quotes of the command.
                let command = advice.split_once('`').unwrap().1.strip_suffix('`').unwrap();
                let status = Command::new("sh").args(["-c", command]).current_dir(folder.path()).status().unwrap();
                assert!(status.success(), "{command}");
                let written = folder.path().join(parent).join(output);
                assert_eq!(fs::read_to_string(&written).ok().as_deref(), Some("café\n"), "{command}");
            }
        }
    }

    #[test]
    fn a_pdf_has_a_command_of_its_own() {
        let of = |path: &str| command(&advice(Path::new(path), true)).to_string();
        assert_eq!(of("a b.pdf"), "pdftotext 'a b.pdf' 'a b.utf8.txt'");
        assert_eq!(of("-x.txt"), "pdftotext ./-x.txt ./-x.utf8.txt");
        assert_eq!(of("a.pdf.gz"), "gzip -dc a.pdf.gz | pdftotext - a.utf8.txt");
        assert_eq!(of("a.txt.zst"), "zstd -dc a.txt.zst | pdftotext - a.utf8.txt");
    }
}

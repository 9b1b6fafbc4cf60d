//! Quotes paths for shells, in commands that a user copies.

use std::path::Path;

/// The path as one shell word, quoted if it has whitespace or characters that a shell interprets.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    if cfg!(windows) {
        // No path there has quotes, and a backslash is nothing special.
        return if text.contains([' ', '&', '(', ')', '\'']) { format!("\"{text}\"") } else { text };
    }
    // What has a NUL is no path.
    shlex::try_quote(&text).map(|quoted| quoted.into_owned()).unwrap_or(text)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_the_path_that_was_quoted() {
        for path in ["runs/my-run_2.0", "runs/my notes", "runs/it's", "runs/$HOME", "a\"b", "runs/naïve", "~x", "-a;b"]
        {
            let script = format!("printf %s {}", quoted(Path::new(path)));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), path);
        }
        assert_eq!(quoted(Path::new("runs/my-run_2.0")), "runs/my-run_2.0", "no quotes where none are needed");
    }
}

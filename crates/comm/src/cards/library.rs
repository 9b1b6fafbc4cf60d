//! Libraries that are loaded at run time.

use libloading::Library;
use std::path::{Path, PathBuf};

/// The first of these that can be loaded, and its name.
pub(super) fn open(names: &[PathBuf]) -> Result<(Library, String), String> {
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: these libraries' constructors have no requirements.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok((library, name.display().to_string())),
            Err(error) => reasons.push(error.to_string()),
        }
    }
    // The first is the one that the system's loader looks for.
    Err(reasons.into_iter().next().unwrap_or_else(|| "there is no library to load".into()))
}

/// Where Python packages have a file, in virtual environments and in the system's folders.
pub(super) fn in_python(file: &str) -> Vec<PathBuf> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let own = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let roots = environments.chain(own).chain(["/usr/local".into(), "/usr".into()]);
    let versions = roots.flat_map(|root| std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten());
    let versions = versions.filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"));
    let packages = versions.flat_map(|entry| ["site-packages", "dist-packages"].map(|name| entry.path().join(name)));
    packages.map(|folder| folder.join(file)).filter(|path| path.exists()).collect()
}

/// Declares a table of functions that a library has, under one name or, by vendor, under two.
macro_rules! functions {
    ($table:ident { $($field:ident: fn($($argument:ty),*) -> $result:ty = $($name:literal)|+;)+ }) => {
        struct $table {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)+
            /// Lasts as long as its functions.
            _library: libloading::Library,
        }

        impl $table {
            fn load(library: libloading::Library, vendor: Vendor) -> Result<$table, String> {
                $(let $field = {
                    let names: &[&str] = &[$($name),+];
                    let name = names[(vendor as usize).min(names.len() - 1)];
                    // SAFETY: the function has this type in the vendor's header.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> $result>(name.as_bytes())
                    };
                    *found.map_err(|error| error.to_string())?
                };)+
                Ok($table { $($field,)+ _library: library })
            }
        }
    };
}
pub(super) use functions;

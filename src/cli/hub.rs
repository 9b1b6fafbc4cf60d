//! Hugging Face's hub, as the environment tells its own programs of it: `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME`,
//! `HF_HUB_CACHE`, `HF_HUB_OFFLINE`.

use crate::Error;
use crate::data::Hub;
use crate::hub_cache::{HubCache, home, path_in, variable};

/// The token that says who asks, if there is one: of the environment, or the file that `hf auth login` writes.
fn token() -> crate::Result<Option<String>> {
    let set = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN"));
    let file = path_in("HF_TOKEN_PATH").map_or_else(|| Ok(home()?.join("token")), Ok::<_, Error>)?;
    let token = match set {
        Some(token) => token,
        None if file.is_file() => std::fs::read_to_string(&file).map_err(|e| Error::io("read", &file, e))?,
        None => return Ok(None),
    };
    let token = token.trim();
    if !token.chars().all(|c| c.is_ascii_graphic()) {
        return Err(Error::Invalid(format!(
            "the token in HF_TOKEN or {} contains whitespace; paste it without line \
                                           breaks",
            file.display()
        )));
    }
    Ok(Some(token.to_string()).filter(|token| !token.is_empty()))
}

/// The server, and the cache.
pub fn hub() -> crate::Result<Hub> {
    let is_set = |value: String| ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str());
    if variable("HF_HUB_OFFLINE").is_some_and(is_set) {
        return Err(Error::Invalid("HF_HUB_OFFLINE is set; unset it to download".into()));
    }
    let endpoint = variable("HF_ENDPOINT").unwrap_or("https://huggingface.co".into());
    let endpoint = endpoint.trim().trim_end_matches('/').to_string();
    Ok(Hub { endpoint, token: token()?, cache: HubCache::of_user()? })
}

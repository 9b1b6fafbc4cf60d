//! One function for each kind of file that rustyflow reads and others may have written. Whatever the bytes are, they
//! are taken or refused with an error: no panic, no memory beyond what the bytes themselves justify, no file outside of
//! the folder. Shared by the fuzz targets and by `tests/untrusted.rs`.
#![allow(dead_code)] // each fuzz target uses one

use rustyflow::config::Layers;
use rustyflow::data::{
    ChatSpec, ChatTemplate, Corpus, CorpusSpec, DeclaredIds, Loader, Order, Piece, Split, TextConventions, Tokenizer,
    TokenizerSpec,
};
use rustyflow::models::gguf::{self, GgufFile};
use rustyflow::models::{self, Gpt2, ModelConfig, ModelKind};
use rustyflow::optim::{Kind, Optimizer, ParameterArena, SavedMoments};
use rustyflow::serve::RequestReader;
use rustyflow::train::{TrainerState, find_checkpoint};
use rustyflow::{DType, Device};
use std::fs;
use std::path::Path;
use std::sync::{LazyLock, Once};

/// Takes a file's bytes, and a folder to put them into.
pub type Entry = fn(&Path, &[u8]);

/// Each entry under the name of its target and of the folder with its seeds.
pub const ENTRIES: [(&str, Entry); 14] = [
    ("config", config),
    ("env", env),
    ("tokenizer", tokenizer),
    ("model", model),
    ("index", index),
    ("adapter", adapter),
    ("moments", moments),
    ("manifest", manifest),
    ("state", state),
    ("corpus", corpus),
    ("gguf", gguf_file),
    ("template", template),
    ("jsonl", jsonl),
    ("request", request),
];

/// Runs an entry in a folder of this process.
pub fn in_scratch(entry: Entry, bytes: &[u8]) {
    // A panic of the tokenizers' library is caught where a file is read, but libFuzzer's hook would end the process
    // before. One that is not caught still ends it.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))));
    let folder = std::env::temp_dir().join(format!("rustyflow-fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for temporary files");
    entry(&folder, bytes);
}

fn put(folder: &Path, name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).expect("the folder can be written to");
    path
}

/// `config.toml`: what loads can be written and loads again as the same.
pub fn config(_: &Path, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(resolved) = Layers::new().toml_str("fuzz.toml", text).and_then(Layers::build) {
        let again = Layers::new().toml_str("again.toml", &resolved.to_toml()).and_then(Layers::build);
        assert_eq!(again.expect("what was written loads").config, resolved.config);
    }
}

/// `config.env`.
pub fn env(folder: &Path, bytes: &[u8]) {
    let path = put(folder, "fuzz.env", bytes);
    let _ = Layers::new().file(&path).and_then(Layers::build);
}

/// `tokenizer.json`: what loads encodes and decodes.
pub fn tokenizer(folder: &Path, bytes: &[u8]) {
    let path = put(folder, "tokenizer.json", bytes);
    if let Ok(tokenizer) = Tokenizer::from_file(&path) {
        let most = tokenizer.vocab_size() as u32;
        if let Ok(ids) = tokenizer.encode("a fox\n sees 12 \u{e9}\u{1f98a}") {
            assert!(ids.iter().all(|&id| id < most), "an id beyond the vocabulary");
            let _ = tokenizer.decode(&ids);
        }
        let _ = tokenizer.decode(&[0, 1, most, u32::MAX]);
        let _ = tokenizer.pretrained_files(8, "qwen2");
    }
}

/// `config.json`, a zero byte, `model.safetensors`.
pub fn model(folder: &Path, bytes: &[u8]) {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    put(folder, "config.json", &bytes[..end]);
    put(folder, "model.safetensors", bytes.get(end + 1..).unwrap_or_default());
    let _ = models::load(folder);
}

/// `model.safetensors.index.json`, beside a model's `config.json` and a shard with all of its tensors.
pub fn index(folder: &Path, bytes: &[u8]) {
    let folder = folder.join("sharded");
    fs::create_dir_all(&folder).expect("a folder can be made");
    let model = include_bytes!("seeds/model/tiny");
    let end = model.iter().position(|&byte| byte == 0).expect("the config ends there");
    put(&folder, "config.json", &model[..end]);
    put(&folder, "1.safetensors", &model[end + 1..]);
    put(&folder, "model.safetensors.index.json", bytes);
    let _ = models::load(&folder);
}

/// `adapter_config.json`, a zero byte, `adapter_model.safetensors`, of an adapter to the least model there is.
pub fn adapter(folder: &Path, bytes: &[u8]) {
    let folder = folder.join("adapter");
    let base = folder.join("base");
    fs::create_dir_all(&base).expect("a folder can be made");
    model(&base, include_bytes!("seeds/model/tiny"));
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    put(&folder, "adapter_config.json", &bytes[..end]);
    put(&folder, "adapter_model.safetensors", bytes.get(end + 1..).unwrap_or_default());
    let _ = models::load(&folder);
}

/// `optimizer.safetensors` of the least model there is.
pub fn moments(folder: &Path, bytes: &[u8]) {
    let path = folder.join("optimizer.safetensors");
    let shape = ModelConfig {
        kind: ModelKind::GPT2,
        vocab_size: 3,
        block_size: 2,
        n_layer: 1,
        n_head: 1,
        n_embd: 2,
        bias: true,
        tie_embeddings: true,
        llama: None,
    };
    let mut model = Gpt2::new(shape, 0).expect("a model");
    let parameters = ParameterArena::new(&mut model, &Device::Cpu, DType::F32).expect("an arena");
    let kind = Kind::Sgd { momentum: 0.9, nesterov: false };
    let mut optimizer = Optimizer::new(&parameters, kind, 0.1, 1.0).expect("an optimizer");
    if let Ok(saved) = SavedMoments::new(&path, bytes) {
        let _ = saved.outer_momentum(&parameters);
        for (rank, ranks) in [(0, 1), (1, 2)] {
            let _ = optimizer.restore(&parameters, &saved, 1, rank, ranks);
        }
    }
}

/// `manifest.json` of a model's folder.
pub fn manifest(folder: &Path, bytes: &[u8]) {
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        put(folder, name, b"abc");
    }
    put(folder, "manifest.json", bytes);
    let _ = find_checkpoint(folder);
}

/// `trainer_state.json`: where it says that the loader stands, the loader starts or says that it cannot.
pub fn state(_: &Path, bytes: &[u8]) {
    if let Ok(state) = serde_json::from_slice::<TrainerState>(bytes)
        && let Ok(mut loader) =
            Loader::new((0..100).collect::<Vec<u32>>().into(), Order::Shuffled, 2, 8, 1, state.position)
    {
        let batch = loader.next_batch();
        assert!(loader.epochs_at(batch.position).is_finite());
    }
}

/// A text to learn from.
pub fn corpus(folder: &Path, bytes: &[u8]) {
    let path = put(folder, "corpus.txt", bytes);
    let (files, corpus) = (&[][..], &*path.display().to_string());
    let chat = ChatSpec::default();
    let spec = CorpusSpec { corpus, files, validation_fraction: 0.1, data_dir: folder, cache: None, chat };
    if let Ok(corpus) = Corpus::open(&spec, &mut |_| {}) {
        let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        let mut read = vec![];
        for split in [Split::Train, Split::Validation] {
            let add = &mut |piece: Piece| {
                if let Piece::Text(text) = piece {
                    read.extend_from_slice(text.as_bytes());
                }
                Ok(())
            };
            corpus.read(split, add).expect("it was read before");
        }
        assert_eq!(read, text);
    }
}

/// A GGUF file: every tensor of one that opens can be read, and what it says of a model is used or refused.
pub fn gguf_file(folder: &Path, bytes: &[u8]) {
    let path = put(folder, "model.gguf", bytes);
    if let Ok(file) = GgufFile::open(&path) {
        for name in file.names() {
            let (_, shape) = file.spec(name).expect("it has the tensor");
            let values = file.tensor(name).expect("it has the tensor");
            assert_eq!(values.len(), shape.iter().product::<usize>());
        }
        if let Ok(files) = gguf::described(&file) {
            let tokenizer = files.into_iter().find(|(name, _)| *name == "tokenizer.json").expect("it is described");
            let path = put(folder, "tokenizer.json", tokenizer.1.as_bytes());
            let _ = Tokenizer::from_file(&path).map(|tokenizer| tokenizer.encode("a b"));
        }
        let file = std::sync::Arc::new(file);
        if let Ok(shape) = gguf::read_shape(&file)
            && let Ok(mut model) = gguf::open(&file, &shape, usize::MAX)
        {
            model.to_device(&Device::Cpu).expect("it was found to be whole");
        }
    }
}

/// A chat template: it writes a conversation or says why not, and comes to an end.
pub fn template(_: &Path, bytes: &[u8]) {
    let Ok(source) = std::str::from_utf8(bytes) else { return };
    let message = |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
    let messages = [message("user", "a"), message("assistant", "b"), message("user", "c"), message("assistant", "d")];
    if let Ok(template) = ChatTemplate::new("fuzz", source, serde_json::Map::new())
        && let (Ok(whole), Ok(turns)) = (template.render(&messages, None, false), template.turns(&messages, None))
    {
        let joined: String = turns.into_iter().map(|turn| turn.text).collect();
        assert_eq!(joined, whole);
    }
}

/// Documents in JSON Lines, conversations among them.
pub fn jsonl(folder: &Path, bytes: &[u8]) {
    let path = put(folder, "corpus.jsonl", bytes);
    let (files, corpus) = (&[][..], &*path.display().to_string());
    let chat = ChatSpec { template: "chatml", folder: None };
    let spec = CorpusSpec { corpus, files, validation_fraction: 0.3, data_dir: folder, cache: None, chat };
    if let Ok(corpus) = Corpus::open(&spec, &mut |_| {}) {
        for split in [Split::Train, Split::Validation] {
            corpus.read(split, &mut |_| Ok(())).expect("it was read before");
        }
    }
}

/// The body of a request to `rustyflow serve`: what is accepted fits the model.
pub fn request(_: &Path, bytes: &[u8]) {
    const CONTEXT: usize = 64;
    // The second has no token for a space.
    static READERS: LazyLock<[RequestReader; 2]> =
        LazyLock::new(|| [reader(&TokenizerSpec::Char), reader(&TokenizerSpec::Word)]);
    fn reader(tokenizer: &TokenizerSpec) -> RequestReader {
        let corpus = Corpus::of_texts("fuzz", &(' '..='~').collect::<String>(), "", None).expect("it is a text");
        let tokenizer = Tokenizer::build(tokenizer, 100, &corpus, Path::new(".")).expect("of this text");
        let source =
            "{% if tools %}<tool_call>{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}|{% endfor %}";
        let template = ChatTemplate::new("fuzz", source, serde_json::Map::new()).expect("it is a template");
        let (kind, vocab_size) = (ModelKind::GPT2, tokenizer.vocab_size());
        let (n_layer, n_head, n_embd, bias, tie_embeddings) = (1, 1, 8, false, true);
        let shape = ModelConfig {
            kind,
            vocab_size,
            block_size: CONTEXT,
            n_layer,
            n_head,
            n_embd,
            bias,
            tie_embeddings,
            llama: None,
        };
        RequestReader::new(shape, TextConventions::new(tokenizer, None, DeclaredIds::default()), template, CONTEXT)
    }
    for prompt in READERS.iter().flat_map(|reader| reader.prompts(bytes)) {
        assert!((1..=CONTEXT).contains(&prompt.len()) && prompt.iter().all(|id| *id < 100), "{prompt:?}");
    }
}

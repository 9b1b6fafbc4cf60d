//! `rustyflow data`: brings data sets into the data folder, makes token files of texts, and says what is in them.

use super::argument::{self, Argument};
use super::output;
use super::{complete, configuration, examples};
use crate::cache;
use crate::config::Layers;
use crate::data::{Corpus, DATASETS, Labels, Prepared, Progress, Tokens, fetch, holds_prepared};
use crate::train::data_spec;
use crate::units;
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Subcommand)]
pub enum Command {
    /// Download a data set, checked by its hash; an interrupted download resumes
    #[command(after_help = examples::DATA_FETCH)]
    Fetch {
        /// wikitext-2, tinyshakespeare or gpt2 (GPT-2's tokenizer)
        #[arg(add = complete::data_sets())]
        name: String,
        /// The folder of downloaded data sets
        #[arg(long, default_value = "data", value_name = "DIR")]
        data_dir: PathBuf,
        /// Download from this URL instead, which has the files directly below
        #[arg(long, value_name = "URL")]
        base_url: Option<String>,
    },
    /// List the data sets that can be fetched
    #[command(after_help = examples::DATA_LIST)]
    List,
    /// Tokenize a text into files, as `train` does before its first step
    #[command(after_help = examples::DATA_PREPARE)]
    Prepare(Prepare),
    /// Describe a text: files, documents, tokens, splits
    #[command(after_help = examples::DATA_STATS)]
    Stats(Prepare),
}

#[derive(clap::Args)]
pub struct Prepare {
    /// A configuration, or a text: a file or a folder
    #[arg(value_name = "CONFIG|CORPUS", add = complete::configs_and_corpora())]
    given: Option<PathBuf>,
    /// sample, wikitext-2, tinyshakespeare, or a file or folder (data.corpus)
    #[arg(long, add = complete::corpora())]
    corpus: Option<String>,
    /// Which files of a folder, as in --files "*.md,!drafts/**" (data.files)
    #[arg(long, value_name = "PATTERNS")]
    files: Option<String>,
    /// char, word, bpe, gpt2, or the path of a tokenizer.json (data.tokenizer)
    #[arg(long, add = complete::tokenizers())]
    tokenizer: Option<String>,
    /// Take the tokenizer and the chat template of this model: a run, a folder, a GGUF file or a fetched model
    /// (model.init)
    #[arg(long, value_name = "DIR|GGUF", add = complete::runs())]
    init: Option<String>,
    /// Chat template of conversations: chatml, or a path (data.chat_template)
    #[arg(long, value_name = "TEMPLATE")]
    chat_template: Option<String>,
    /// Vocabulary size of bpe (data.vocab_size)
    #[arg(long, value_name = "N")]
    vocab_size: Option<String>,
    /// Fraction of the text kept for validation (data.validation_fraction)
    #[arg(long, value_name = "F")]
    validation_fraction: Option<String>,
    /// Tokens of a training row, to count truncated documents [default: that of the configuration]
    #[arg(long, value_name = "N")]
    block_size: Option<String>,
    /// Put train.bin, val.bin, meta.json and tokenizer.json here [default: the cache, where `train` finds them]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The folder of downloaded data sets
    #[arg(long, default_value = "data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Print one JSON object instead
    #[arg(long)]
    pub json: bool,
}

impl Command {
    /// Whether it prints JSON.
    pub fn is_for_machines(&self) -> bool {
        matches!(self, Command::Prepare(args) | Command::Stats(args) if args.json)
    }
}

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::List => {
            for dataset in DATASETS {
                output::line(format_args!("{:<16} {}", dataset.name, dataset.about))?;
            }
            Ok(())
        }
        Command::Fetch { name, data_dir, base_url } => {
            let bar = download_bar(&name);
            let folder = fetch(&name, &data_dir, base_url.as_deref(), &mut |done, total| {
                if let Some(total) = total {
                    bar.set_length(total);
                }
                bar.set_position(done);
            });
            bar.finish_and_clear();
            output::line(format_args!("{name} is in {}", folder?.display()))?;
            Ok(())
        }
        Command::Prepare(args) => prepare(&args, false),
        Command::Stats(args) => prepare(&args, true),
    }
}

/// How far a download is, on a terminal.
pub fn download_bar(name: &str) -> ProgressBar {
    let bar = if output::is_quiet() { ProgressBar::hidden() } else { ProgressBar::no_length() };
    let bar = bar.with_style(
        ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} ETA {eta}")
            .expect("the template is valid"),
    );
    bar.set_message(name.to_string());
    bar
}

fn prepare(args: &Prepare, with_counts: bool) -> Result<()> {
    let given = args.given.as_deref().map(Argument::read).transpose()?;
    let mut layers = match &given {
        Some(Argument::Config(path)) => Layers::new().file(path)?,
        _ => Layers::new(),
    };
    layers = layers.environment(crate::config::process_environment())?;
    let corpus = argument::corpus(given.as_ref(), args.corpus.as_ref())?;
    let flags = [
        corpus,
        ("--files", "data.files", args.files.clone()),
        ("--tokenizer", "data.tokenizer", args.tokenizer.clone()),
        ("--init", "model.init", args.init.clone()),
        ("--chat-template", "data.chat_template", args.chat_template.clone()),
        ("--vocab-size", "data.vocab_size", args.vocab_size.clone()),
        ("--validation-fraction", "data.validation_fraction", args.validation_fraction.clone()),
        ("--block-size", "model.block_size", args.block_size.clone()),
    ];
    let resolved = configuration::build(configuration::with_flags(layers, flags.iter())?)?;
    configuration::warn(&resolved);
    let (data, block_size) = (resolved.config.data, resolved.config.model.block_size);
    let cache = cache::user_folder();
    let spec = data_spec(&data, &args.data_dir, cache.as_deref());
    let started = Instant::now();
    let mut bar = Bar::new();
    let corpus = Corpus::open(&spec.corpus, &mut |done| bar.show(Progress { task: "reading", done, total: None }))?;
    if let Some(folder) = args.out.as_deref().filter(|folder| holds_prepared(folder)) {
        output::note(format_args!("note: the tokens in {} are replaced", folder.display()));
    }
    let prepared = match &args.out {
        Some(folder) => spec.write_to(&corpus, folder, &mut |progress| bar.show(progress))?,
        None => spec.prepare(&corpus, None, &mut |_| Ok(()), &mut |progress| bar.show(progress))?,
    };
    bar.clear();
    let seconds = started.elapsed().as_secs_f64();
    let counts = with_counts.then(|| Counts::of(&prepared, block_size));
    if args.json {
        return Ok(output::line(in_json(&corpus, &prepared, counts, seconds)?)?);
    }
    say(&corpus, &prepared, counts)?;
    if !with_counts {
        let speed = units::si(corpus.bytes() as f64 / seconds.max(1e-9), "B/s");
        match bar.shown {
            true => output::line(format_args!("time           {}, {speed}", units::duration(seconds)))?,
            false => output::line("time           none: cached")?,
        }
        output::line(format_args!("folder         {}", prepared.folder.display()))?;
    }
    Ok(())
}

fn in_json(corpus: &Corpus, prepared: &Prepared, counts: Option<Counts>, seconds: f64) -> Result<serde_json::Value> {
    let mut json = serde_json::to_value(&prepared.meta)?;
    let text = &corpus.summary;
    json["folder"] = serde_json::json!(prepared.folder);
    json["files"] = text.files.into();
    json["bytes"] = text.bytes.into();
    json["documents"] = text.documents.into();
    json["held_out"] = text.held_out.into();
    json["skipped"] = serde_json::json!(text.skipped);
    json["undecodable"] = serde_json::json!(text.undecodable);
    json["seconds"] = seconds.into();
    if let Some(counts) = counts {
        json["used_tokens"] = counts.used.into();
        json["learned_tokens"] = counts.learned.into();
        json["block_size"] = counts.block_size.into();
        json["longest_document"] = counts.longest_document.into();
        let [cut, left_out] = counts.truncations.map_or([None; 2], |(cut, left_out)| [Some(cut), Some(left_out)]);
        json["truncated_documents"] = cut.into();
        json["left_out_documents"] = left_out.into();
        let Labels { texts: _, pairs, desirable, undesirable } = counts.labels;
        json["pairs"] = pairs.into();
        json["desirable_answers"] = desirable.into();
        json["undesirable_answers"] = undesirable.into();
        json["most_frequent"] = serde_json::json!(counts.most_frequent);
    }
    Ok(json)
}

fn say(corpus: &Corpus, prepared: &Prepared, counts: Option<Counts>) -> Result<()> {
    let meta = &prepared.meta;
    output::line(format_args!("corpus         {}: {}", corpus.name, corpus.summary))?;
    output::line(format_args!("tokenizer      {}, {} tokens", meta.tokenizer, meta.vocab_size))?;
    let tokens = meta.train_tokens + meta.validation_tokens;
    let share = 100.0 * meta.validation_tokens as f64 / tokens.max(1) as f64;
    output::line(format_args!("training       {} tokens", units::count(meta.train_tokens as f64)))?;
    let validation = units::count(meta.validation_tokens as f64);
    output::line(format_args!("validation     {validation} tokens, {share:.1}% of all"))?;
    let each = corpus.bytes() as f64 / tokens.max(1) as f64;
    output::line(format_args!("bytes a token  {each:.2}"))?;
    if !meta.coverage.lossless {
        let unknown = 100.0 * meta.coverage.unknown_share;
        output::line(format_args!("lossy          tokens do not preserve the whole text; {unknown:.2}% are unknown"))?;
    }
    if let Some(Counts { learned, used, block_size, longest_document, truncations, labels, most_frequent }) = counts {
        if labels.pairs > 0 {
            output::line(format_args!(
                "pairs          {} of a chosen and a rejected answer, for training",
                labels.pairs
            ))?;
        }
        if labels.desirable + labels.undesirable > 0 {
            let Labels { desirable, undesirable, .. } = labels;
            output::line(format_args!(
                "answers        {desirable} desirable, {undesirable} undesirable, for training"
            ))?;
        }
        if let Some((cut, left_out)) = truncations {
            let share = 100.0 * learned as f64 / meta.train_tokens.max(1) as f64;
            let learned = units::count(learned as f64);
            output::line(format_args!(
                "learned        {learned} of the training tokens, {share:.1}%; prompts are masked"
            ))?;
            output::line(format_args!("longest        {longest_document} tokens in a document"))?;
            output::line(format_args!(
                "truncated      {cut} documents are truncated at model.block_size = {block_size}, {left_out} are \
                 dropped"
            ))?;
        }
        output::line(format_args!("used           {used} of {} tokens of the vocabulary", meta.vocab_size))?;
        let list: Vec<String> = most_frequent.iter().map(|(text, count)| format!("{text:?} {count}")).collect();
        output::line(format_args!("most frequent  {}", list.join(", ")))?;
    }
    meta.notes.iter().for_each(|note| output::note(format_args!("note: {note}")));
    Ok(())
}

/// How often tokens occur in training.
struct Counts {
    /// Tokens of training that are learned from.
    learned: usize,
    /// Length of a training row.
    block_size: usize,
    longest_document: usize,
    /// Documents that lose their end in such a row, and that are left out; `None` of a continuous text.
    truncations: Option<(usize, usize)>,
    /// Documents of training by their labels.
    labels: Labels,
    /// Tokens that occur at all.
    used: usize,
    most_frequent: Vec<(String, u64)>,
}

impl Counts {
    fn of(prepared: &Prepared, block_size: usize) -> Counts {
        let mut counts = vec![0_u64; prepared.tokenizer.vocab_size()];
        let train: &Tokens = &prepared.train;
        train.each_part(|ids| ids.iter().for_each(|&id| counts[id as usize] += 1));
        let mut order: Vec<usize> = (0..counts.len()).filter(|&id| counts[id] > 0).collect();
        order.sort_by_key(|&id| std::cmp::Reverse(counts[id]));
        let text = |id: usize| prepared.tokenizer.decode(&[id as u32]).unwrap_or_default();
        let most_frequent = order.iter().take(8).map(|&id| (text(id), counts[id])).collect();
        Counts {
            learned: train.targets(),
            block_size,
            longest_document: train.document_lengths().max().unwrap_or(0),
            truncations: train.is_in_documents().then(|| train.truncations(block_size)),
            labels: train.labels(),
            used: order.len(),
            most_frequent,
        }
    }
}

/// How far a preparation is, on a terminal.
pub struct Bar {
    bar: ProgressBar,
    /// Whether there was anything to do.
    shown: bool,
}

impl Bar {
    pub fn new() -> Bar {
        let is_seen = std::io::stderr().is_terminal() && !output::is_quiet();
        Bar { bar: if is_seen { ProgressBar::no_length() } else { ProgressBar::hidden() }, shown: false }
    }

    pub fn show(&mut self, progress: Progress) {
        self.shown = true;
        let style = match progress.total {
            Some(_) => "{msg} {wide_bar:.cyan/238} {bytes}/{total_bytes}  {bytes_per_sec}  ETA {eta}",
            None => "{msg} {bytes}  {bytes_per_sec}",
        };
        if self.bar.message() != progress.task {
            self.bar.reset();
            self.bar.set_style(ProgressStyle::with_template(style).expect("the template is valid"));
            self.bar.set_message(progress.task);
        }
        progress.total.into_iter().for_each(|total| self.bar.set_length(total));
        self.bar.set_position(progress.done);
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

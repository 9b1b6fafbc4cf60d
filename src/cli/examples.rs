//! The examples that end the help of each command.

pub const TRAIN: &str = "Examples:
  rustyflow train                                           a small model on the sample corpus
  rustyflow train my.toml --device gpu                      a configuration, on the GPU
  rustyflow train notes/ --epochs 5                         your own text: a file or a folder
  rustyflow train my.toml --set train.learning_rate=3e-4    any key of the configuration
  rustyflow train my.toml --tui                             curves on the whole terminal
  rustyflow train my.toml --dry-run                         memory and time, without training
  rustyflow train --resume auto                             continue the newest unfinished run
  rustyflow train --init my-run --corpus more.txt           a new run from another's weights";

pub const PLAN: &str = "Examples:
  rustyflow plan configs/gpt2-124m.toml --device gpu        memory, time and the largest batch
  rustyflow plan configs/gpt2-124m.toml --ranks 8 --network 25Gbps
  rustyflow plan --n-layer 12 --n-embd 768 --json           for a script";

pub const SWEEP: &str = "Examples:
  rustyflow sweep --set train.learning_rate=1e-4,3e-4,1e-3 --set model.n_layer=2,4
  rustyflow sweep my.toml --set run.seed=1,2,3 --dir runs/seeds
  rustyflow sweep my.toml --set train.learning_rate=1e-3,1e-2 --continue-on-error";

pub const REPRODUCE: &str = "Examples:
  rustyflow reproduce --list                                the recipes that ship
  rustyflow reproduce quickstart                            trains and checks the loss
  rustyflow reproduce my-recipe.toml --device gpu           your own: with a table [recipe]";

pub const VERIFY_RESUME: &str = "Examples:
  rustyflow verify-resume
  rustyflow verify-resume my.toml --device gpu --steps 50";

pub const EVAL: &str = "Examples:
  rustyflow eval                                            the newest run, on its validation split
  rustyflow eval --model runs/my-run --text novel.txt
  rustyflow eval --model runs/my-run --corpus wikitext-2 --split test --stride 32
  rustyflow eval --model openai-community/gpt2 --choices questions.jsonl";

pub const GENERATE: &str = "Examples:
  rustyflow generate --prompt \"One morning\"
  rustyflow generate --model my-run --prompt \"To be\" --temperature 0.7 --min-p 0.05
  rustyflow generate --prompt \"1.\" --stop \"2.\" --samples 4
  rustyflow generate --prompts prompts.txt --json           one text per line, in batches
  rustyflow generate --logit-bias \" the=-2\" --repetition-penalty 1.2";

pub const CHAT: &str = "Examples:
  rustyflow chat                                            with the newest run's model
  rustyflow chat --model Qwen/Qwen3-0.6B --system \"Be brief.\" --temperature 0.6
  rustyflow chat --model runs/my-run --chat-template chatml
  rustyflow chat --json < questions.txt > answers.jsonl     a line, an answer";

#[cfg(feature = "serve")]
pub const SERVE: &str = "Examples:
  rustyflow serve                                           the newest run, at http://127.0.0.1:8080
  rustyflow serve --model model.gguf --dtype q8_0 --slots 8 --context 2048
  rustyflow serve --model Qwen/Qwen3-0.6B --host 0.0.0.0 --port 80 --api-key-file key.txt

docs/serve.md has the endpoints, and how to use them from curl, Python and evaluation harnesses.";

pub const FETCH: &str = "Examples:
  rustyflow fetch openai-community/gpt2                     then by that name: train --init, chat
  rustyflow fetch Qwen/Qwen3-0.6B --revision main --exclude \"*.md\"
  rustyflow fetch org/name --include \"*.json\"              other files than a model needs

HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE work as in huggingface_hub.";

pub const MERGE: &str = "Examples:
  rustyflow merge runs/my-lora --output my-model            a run that trained adapters
  rustyflow merge my-adapter --output my-model              a folder that transformers loads
  rustyflow merge my-adapter --output my-model --dtype bf16 --max-shard-size 2GB";

pub const EXPORT: &str = "Examples:
  rustyflow export runs/my-run --output my.gguf --dtype q8_0
  rustyflow export runs/my-run --output my-model --format safetensors --dtype bf16
  rustyflow export openai-community/gpt2 --output gpt2.gguf --text novel.txt";

pub const DEVICES: &str = "Examples:
  rustyflow devices
  rustyflow devices --json";

pub const DOCTOR: &str = "Examples:
  rustyflow doctor                                          the default device
  rustyflow doctor --device gpu:1 --json";

pub const CONFIG_SHOW: &str = "Examples:
  rustyflow config show my.toml --set train.learning_rate=3e-4
  rustyflow config show --json";

pub const CONFIG_INIT: &str = "Examples:
  rustyflow config init
  rustyflow config init my.toml";

pub const CONFIG_SCHEMA: &str = "Examples:
  rustyflow config schema > rustyflow.schema.json

Editors with Taplo complete a file that begins with `#:schema ./rustyflow.schema.json`.";

pub const BENCH_OPS: &str = "Examples:
  rustyflow bench ops --device gpu
  rustyflow bench ops --only matmul --shape 4096x4096x64";

pub const BENCH_STEP: &str = "Examples:
  rustyflow bench step --case gpt2-124m --device gpu --profile
  rustyflow bench step --case gpt2-124m --device gpu --batch-size 1 --batch-size 4 --svg speed.svg";

pub const BENCH_LORA: &str = "Examples:
  rustyflow bench lora --model Qwen/Qwen3-0.6B --device gpu --precision mixed --batch-size 1,4
  rustyflow bench lora --model model.gguf --device gpu --precision mixed --base-dtype f16,nf4";

pub const BENCH_GENERATE: &str = "Examples:
  rustyflow bench generate --case gpt2-124m --device gpu
  rustyflow bench generate --case gpt2-124m --device gpu --dtype f16 --batch-size 64";

pub const BENCH_TUNE: &str = "Examples:
  rustyflow bench tune                                      the first GPU, for half a minute
  rustyflow bench tune --device gpu:1 --seconds 120";

pub const BENCH_REPORT: &str = "Examples:
  rustyflow bench report --device gpu --out docs/hardware/my-gpu.json
  rustyflow bench report --table docs/hardware/*.json";

pub const DATA_FETCH: &str = "Examples:
  rustyflow data fetch wikitext-2
  rustyflow data fetch gpt2";

pub const DATA_LIST: &str = "Examples:
  rustyflow data list";

pub const DATA_PREPARE: &str = "Examples:
  rustyflow data prepare my.toml                            as `train my.toml` does first
  rustyflow data prepare --corpus notes/ --tokenizer gpt2 --out tokens/";

pub const DATA_STATS: &str = "Examples:
  rustyflow data stats notes/
  rustyflow data stats --corpus code/ --files \"*.rs,*.toml,!target/**\" --json";

pub const RUNS_LIST: &str = "Examples:
  rustyflow runs list";

pub const RUNS_SHOW: &str = "Examples:
  rustyflow runs show my-run";

pub const RUNS_COMPARE: &str = "Examples:
  rustyflow runs compare a b                                side by side, with their curves
  rustyflow runs compare a b c --html compared.html";

pub const RUNS_RM: &str = "Examples:
  rustyflow runs rm old-run";

pub const COMPLETIONS: &str = "Examples:
  rustyflow completions bash > ~/.local/share/bash-completion/completions/rustyflow
  rustyflow completions zsh > ~/.zfunc/_rustyflow
  rustyflow completions fish > ~/.config/fish/completions/rustyflow.fish";

pub const MAN: &str = "Examples:
  rustyflow man ~/.local/share/man/man1";

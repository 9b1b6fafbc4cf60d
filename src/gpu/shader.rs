//! Renders shader templates (Jinja syntax) to WGSL.

use super::plan::{INCLUDES, Launch, Shader, Value};

/// The WGSL text of one variant.
///
/// # Panics
/// If the template is malformed: templates ship with the binary and `tests/shaders.rs` renders every variant.
pub fn render(shader: &Shader, values: &[(&'static str, Value)]) -> String {
    let mut env = minijinja::Environment::new();
    env.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
    let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the standard delimiters are valid"));
    for (name, source) in INCLUDES.into_iter().chain([(shader.name, shader.source)]) {
        env.add_template(name, source).unwrap_or_else(|e| panic!("shaders/{name}.wgsl: {e:#}"));
    }
    let context: std::collections::BTreeMap<&str, minijinja::Value> = values
        .iter()
        .map(|(name, value)| {
            let value = match *value {
                Value::Int(v) => minijinja::Value::from(v),
                Value::Bool(v) => minijinja::Value::from(v),
                Value::Str(v) => minijinja::Value::from(v),
            };
            (*name, value)
        })
        .collect();
    let template = env.get_template(shader.name).expect("added above");
    template.render(context).unwrap_or_else(|e| panic!("shaders/{}.wgsl: {e:#}", shader.name))
}

/// The WGSL text that a launch runs.
pub fn source_of(launch: &Launch) -> String {
    render(&launch.shader, &launch.values)
}

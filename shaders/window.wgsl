// Puts x into a larger tensor, or adds it there (src/ops/movement/window.rs). One thread per {{ type }} of the result:
// its index in each of the {{ rank }} dimensions gives its place in x, if it has one. What comes before a span wraps
// around to more than any count.
{{ interface }}

{{ for_each(1) }}
    var rest = i;
    var place = 0u;
    var scale = 1u;
    var within = true;
    {% for d in range(rank)|reverse %}
    let from_start{{ d }} = rest % params.size{{ d }} - params.start{{ d }};
    rest /= params.size{{ d }};
    {% if stepped %}
    let index{{ d }} = from_start{{ d }} / params.step{{ d }};
    within = within && from_start{{ d }} % params.step{{ d }} == 0u && index{{ d }} < params.count{{ d }};
    {% else %}
    let index{{ d }} = from_start{{ d }};
    within = within && index{{ d }} < params.count{{ d }};
    {% endif %}
    place += index{{ d }} * scale;
    scale *= params.count{{ d }};
    {% endfor %}
    {% if accumulate %}
    if (within) { result[i] += x[place]; }
    {% else %}
    var value = {{ type }}({{ T }}(params.value));
    if (within) { value = x[place]; }
    result[i] = value;
    {% endif %}
}

// Reads x at strides (src/ops/movement/strided.rs). One thread per {{ type }} of the result: its position along the
// line gives its index in each of the {{ rank }} dimensions, and those its place in x. Negative strides are modulo
// 2^32.
{{ interface }}

{{ for_each(1) }}
    var rest = i;
    var place = params.offset;
    {% for d in range(rank)|reverse %}
    place += rest % params.size{{ d }} * params.a{{ d }};
    rest /= params.size{{ d }};
    {% endfor %}
    result[i] = x[place];
}

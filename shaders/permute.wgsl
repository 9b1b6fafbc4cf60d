// Copies elements to another order of dimensions (src/ops/permute.rs). One thread per {{ type }} of the result: its
// position along the line gives its index in each of the {{ rank }} dimensions, and those its place in x.
{{ interface }}

{{ for_each(1) }}
    var rest = i;
    var place = 0u;
    {% for d in range(rank)|reverse %}
    place += rest % params.size{{ d }} * params.stride{{ d }};
    rest /= params.size{{ d }};
    {% endfor %}
    result[i] = x[place];
}

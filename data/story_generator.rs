//! Writes `data/sample.txt`, the corpus that ships with the program:
//!
//! ```text
//! cargo run --example story_generator > data/sample.txt
//! ```
//!
//! Little stories that a small model can learn: characters keep their names and traits through a story, effects follow
//! from causes, things are found where they were put, and numbers add up. Each plot is a function; its sentences come
//! in several wordings, drawn together with names, things and places from a generator with a fixed seed. A test
//! compares the file with what this makes, byte for byte.
//!
//! The text is dedicated to the public domain (CC0 1.0).

// Variables that hold a capitalised word are capitalised: `{He}` begins a sentence, `{he}` does not.
#![allow(non_snake_case)]

use std::io::Write;

/// The seed and the least size of `data/sample.txt`.
pub const SEED: u64 = 20;
pub const SIZE_BYTES: usize = 1_000_000;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(write_stories(SEED, SIZE_BYTES).as_bytes())
}

/// Stories until they fill `size_bytes`: a title line, a few paragraphs of one line each, and a blank line between
/// stories.
pub fn write_stories(seed: u64, size_bytes: usize) -> String {
    let plots = [
        lost, baking, sharing, race, storm, building, garden, promise, trading, noise, neighbour, honest, crossing,
        hiding, letter, repair,
    ];
    let mut random = Random(seed);
    let mut text = String::with_capacity(size_bytes + 2000);
    while text.len() < size_bytes {
        if !text.is_empty() {
            text.push('\n');
        }
        let plot = plots[random.below(plots.len())];
        let (title, paragraphs) = plot(&mut random);
        text.push_str(&title);
        text.push('\n');
        for paragraph in paragraphs {
            text.push_str(&paragraph);
            text.push('\n');
        }
    }
    text
}

/// A title and its paragraphs.
type Story = (String, Vec<String>);

/// A 64-bit linear congruential generator (Knuth's MMIX constants); the high bits, which are the good ones, are used.
pub struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())].clone()
    }

    /// `count` different items.
    fn pick_some<T: Clone>(&mut self, items: &[T], count: usize) -> Vec<T> {
        let mut left = items.to_vec();
        (0..count).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }
}

/// One of several wordings, each a format string that sees the variables around it, and those named after it.
macro_rules! say {
    ($random:expr, $($wording:literal),+ $(, $name:ident = $value:expr)* $(,)?) => {{
        $(let $name = $value;)*
        let wordings = [$(format!($wording)),+];
        $random.pick(&wordings)
    }};
}

/// Joins sentences into a paragraph.
macro_rules! paragraph {
    ($($sentence:expr),+ $(,)?) => {
        [$($sentence.to_string()),+].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" ")
    };
}

#[derive(Clone)]
struct Person {
    name: &'static str,
    kind: &'static str,
    he: &'static str,
    him: &'static str,
    his: &'static str,
    /// What this character is like, and stays like.
    is: &'static str,
}

const GIRLS: [&str; 16] = [
    "Anna", "Clara", "Emma", "Grace", "Ida", "Kate", "Lily", "Mia", "Nora", "Olive", "Rosa", "Ruby", "Tess", "Wanda",
    "Zoe", "Hazel",
];
const BOYS: [&str; 16] = [
    "Ben", "David", "Finn", "Henry", "Jack", "Leo", "Max", "Noah", "Oscar", "Paul", "Sam", "Tom", "Will", "Peter",
    "Hugo", "Felix",
];
const ANIMALS: [&str; 12] =
    ["rabbit", "fox", "mouse", "bear", "squirrel", "hedgehog", "duck", "goat", "badger", "frog", "beaver", "otter"];
const TRAITS: [&str; 14] = [
    "brave",
    "shy",
    "patient",
    "curious",
    "careful",
    "cheerful",
    "clever",
    "gentle",
    "quiet",
    "busy",
    "young",
    "thoughtful",
    "friendly",
    "stubborn",
];

/// `count` characters with different names and traits, all children or all animals of different kinds.
fn people(random: &mut Random, count: usize) -> Vec<Person> {
    let animals = random.chance(45);
    let kinds = random.pick_some(&ANIMALS, count);
    let traits = random.pick_some(&TRAITS, count);
    let (girls, boys) = (random.pick_some(&GIRLS, count), random.pick_some(&BOYS, count));
    (0..count)
        .map(|i| {
            let girl = random.chance(50);
            Person {
                name: if girl { girls[i] } else { boys[i] },
                kind: match (animals, girl) {
                    (true, _) => kinds[i],
                    (false, true) => "girl",
                    (false, false) => "boy",
                },
                he: if girl { "she" } else { "he" },
                him: if girl { "her" } else { "him" },
                his: if girl { "her" } else { "his" },
                is: traits[i],
            }
        })
        .collect()
}

const HOMES: [&str; 12] = [
    "in a small house by the river",
    "at the edge of the forest",
    "in a village under the hill",
    "near the old mill",
    "by the sea",
    "on a farm behind the church",
    "at the end of a long road",
    "beside a deep lake",
    "in a valley full of flowers",
    "on the sunny side of the mountain",
    "next to the bakery",
    "in a cottage with a green door",
];

const WEATHER: [&str; 8] = [
    "One sunny morning",
    "One cold morning",
    "One windy day",
    "On a warm afternoon",
    "Early one morning",
    "On a grey and quiet day",
    "On the first day of spring",
    "One day in autumn",
];

/// A thing that can be held, with its colour in front.
fn thing(random: &mut Random) -> String {
    let colours = ["red", "blue", "green", "yellow", "white", "brown", "silver", "little"];
    let things =
        ["ball", "kite", "hat", "cup", "book", "drum", "scarf", "basket", "bell", "lamp", "spoon", "whistle", "box"];
    format!("{} {}", random.pick(&colours), random.pick(&things))
}

/// "a" or "an", and the words.
fn a(words: &str) -> String {
    let article = if words.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {words}")
}

fn number(n: usize) -> &'static str {
    const WORDS: [&str; 21] = [
        "no",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
        "twenty",
    ];
    WORDS[n]
}

/// "one apple", "two apples", "three loaves".
fn count(n: usize, one: &str, many: &str) -> String {
    format!("{} {}", number(n), if n == 1 { one } else { many })
}

fn capital(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Every word but the small ones with a capital, for titles.
fn title(words: &str) -> String {
    let small = |word: &str| ["a", "an", "the", "of", "with"].contains(&word);
    let words = words.split(' ').map(|word| if small(word) { word.to_string() } else { capital(word) });
    words.collect::<Vec<_>>().join(" ")
}

fn opening(random: &mut Random, person: &Person) -> String {
    let Person { name, kind, is, he, .. } = person;
    let (home, known) = (random.pick(&HOMES), a(&format!("{is} {kind}")));
    let He = capital(he);
    say!(
        random,
        "Once there was {known} named {name}. {He} lived {home}.",
        "{name} was {known} who lived {home}.",
        "Once upon a time, {known} called {name} lived {home}.",
        "There once was {known} whose name was {name}, and {he} lived {home}.",
        "Everyone knew {name}, {known} who lived {home}.",
    )
}

fn introduce(random: &mut Random, person: &Person, other: &Person) -> String {
    let (Person { name, his, .. }, Person { name: friend, kind, is, .. }) = (person, other);
    let known = a(&format!("{is} {kind}"));
    let His = capital(his);
    say!(
        random,
        "{His} best friend was {friend}, {known}.",
        "{friend}, {known}, was {his} best friend.",
        "{name} had a friend named {friend}, {known}.",
        "Not far away lived {his} friend {friend}, {known}.",
    )
}

fn ending(random: &mut Random, person: &Person, other: &Person, moral: &str) -> String {
    let (Person { name, he, .. }, Person { name: friend, .. }) = (person, other);
    let He = capital(he);
    say!(
        random,
        "From that day on, {name} knew that {moral}.",
        "And so {name} learned that {moral}.",
        "{He} never forgot that {moral}.",
        "That night, {name} told everyone at home that {moral}.",
        "\"Now I know that {moral},\" said {name}, and {friend} smiled.",
        "Since then, {name} and {friend} have always said that {moral}.",
    )
}

/// A thing is put somewhere, forgotten, and found exactly there.
fn lost(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, .. }, Person { name: friend, he: they, .. }) = (&cast[0], &cast[1]);
    let (He, They) = (capital(he), capital(they));
    let thing = thing(random);
    let places = [
        "under the bed",
        "behind the door",
        "on top of the shelf",
        "inside the old barrel",
        "beside the well",
        "under the apple tree",
        "behind the woodpile",
        "on the garden wall",
        "inside the barn",
        "under the bench",
    ];
    let places = random.pick_some(&places, 3);
    let (there, wrong, wronger) = (places[0], places[1], places[2]);
    let why = random.pick(&[
        "it would stay dry",
        "nobody would step on it",
        "it would be safe",
        "the wind could not take it",
    ]);
    let day = random.pick(&WEATHER);
    let first = paragraph!(
        opening(random, &cast[0]),
        introduce(random, &cast[0], &cast[1]),
        say!(
            random,
            "{He} had {article} that {he} loved more than anything else.",
            "What {he} liked best in the world was {his} {thing}.",
            "{He} carried {his} {thing} wherever {he} went.",
            article = a(&thing)
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "{day}, {name} put the {thing} {there}, so that {why}.",
            "{day}, {he} had work to do, so {he} left the {thing} {there}, where {why}.",
        ),
        say!(
            random,
            "Then {he} went to help in the kitchen and forgot all about it.",
            "Then it began to rain, and {he} ran home without it.",
            "Then {friend} called, and they played until it was dark."
        ),
    );
    let third = paragraph!(
        say!(
            random,
            "The next day the {thing} was gone.",
            "In the morning {name} could not find the {thing}.",
            "The next morning {he} wanted the {thing}, but it was not in {his} room."
        ),
        say!(
            random,
            "{He} looked {wrong}, but it was not there.",
            "First {he} looked {wrong}. There was nothing but dust."
        ),
        say!(
            random,
            "{He} looked {wronger}, but it was not there either.",
            "Then {he} looked {wronger}. There was only a spider."
        ),
        say!(random, "{name} sat down and began to cry.", "{name} was very sad.", "{He} did not know what to do."),
    );
    let fourth = paragraph!(
        say!(random, "\"What is wrong?\" asked {friend}.", "{friend} came by. \"Why are you so sad?\" {they} asked."),
        say!(random, "\"I have lost my {thing},\" said {name}.", "\"My {thing} is gone,\" {name} said."),
        say!(
            random,
            "\"Think,\" said {friend}. \"Where did you have it last?\"",
            "{They} thought for a while. \"Where did you put it yesterday?\" {they} asked."
        ),
        say!(
            random,
            "{name} closed {his} eyes and thought. \"I put it {there}!\" {he} cried.",
            "\"Yesterday?\" said {name}. \"Yesterday I put it {there}!\""
        ),
    );
    let moral = random.pick(&[
        "it helps to stop and think",
        "a good friend is the best thing to find",
        "lost things are often where we left them",
    ]);
    let fifth = paragraph!(
        say!(
            random,
            "They ran to look {there}, and there was the {thing}, just as {he} had left it.",
            "Together they looked {there}. There it was!"
        ),
        say!(
            random,
            "\"Thank you,\" said {name}, and {he} gave {friend} a hug.",
            "{name} laughed and danced with the {thing} in {his} arms."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("The Lost {}", title(&thing)), format!("{name} Looks for the {}", title(&thing))]),
        vec![first, second, third, fourth, fifth],
    )
}

/// Not enough of one ingredient; a neighbour lends exactly what is missing.
fn baking(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, him, .. }, Person { name: friend, he: they, .. }) = (&cast[0], &cast[1]);
    let He = capital(he);
    let cake = random.pick(&["honey cake", "apple pie", "plum cake", "carrot cake", "berry pie", "nut bread"]);
    let (one, many) = random.pick(&[
        ("egg", "eggs"),
        ("cup of flour", "cups of flour"),
        ("spoon of honey", "spoons of honey"),
        ("cup of milk", "cups of milk"),
    ]);
    let needed = random.between(4, 9);
    let has = random.between(1, needed - 1);
    let lacks = needed - has;
    let (needs, had, missing) = (count(needed, one, many), count(has, one, many), count(lacks, one, many));
    let guest = random.pick(&["Grandmother", "Grandfather", "Aunt Martha", "Uncle George", "the old teacher"]);
    let day = random.pick(&WEATHER);
    let was = if has == 1 { "was" } else { "were" };
    let pieces = random.between(3, 6) * 2;
    let (cut, each) = (number(pieces), number(pieces / 2));
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "{day}, {he} wanted to bake {article}, because {guest} was coming to visit.",
            "{day}, {name} said, \"Today I will bake {article} for {guest}.\"",
            article = a(cake)
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "For the {cake}, {he} needed {needs}.",
            "The old book said that {article} needs {needs}.",
            article = a(cake)
        ),
        say!(
            random,
            "{name} opened the cupboard and counted. There {was} only {had}.",
            "But when {he} looked, {he} had only {had}."
        ),
        say!(
            random,
            "\"Then I need {missing} more,\" {he} said.",
            "So {missing} {were} still missing.",
            were = if lacks == 1 { "was" } else { "were" }
        ),
    );
    let third = paragraph!(
        introduce(random, &cast[0], &cast[1]),
        say!(
            random,
            "{name} knocked at the door. \"Please, could you lend me {missing}?\" {he} asked.",
            "{He} went over and asked, \"Do you have {missing} for me?\""
        ),
        say!(
            random,
            "\"Of course,\" said {friend}, and {they} gave {him} {missing}.",
            "\"Take them,\" said {friend}. \"But bring me a piece of the {cake}.\""
        ),
        say!(
            random,
            "Now {name} had {needs}, and that was enough.",
            "{had} and {more} make {all}, so now there was enough.",
            had = capital(number(has)),
            more = number(lacks),
            all = number(needed)
        ),
    );
    let fourth = paragraph!(
        say!(
            random,
            "{He} mixed everything in a big bowl and put it into the oven.",
            "{He} stirred and stirred, and then the {cake} went into the oven."
        ),
        say!(
            random,
            "Soon the whole house smelled sweet.",
            "After an hour it was golden brown.",
            "The smell was so good that even the cat came to look."
        ),
        say!(
            random,
            "When {guest} came, {name} cut the {cake} into {cut} pieces, and half of them, {each} pieces, {he} brought to {friend}.",
            "{name} cut it into {cut} pieces. {Each} pieces were for {friend}, and {each} were for {guest}.",
            Each = capital(each)
        ),
    );
    let moral = random.pick(&[
        "a cake tastes best when it is shared",
        "those who ask kindly are often helped",
        "good neighbours are worth more than gold",
    ]);
    let last = paragraph!(
        say!(
            random,
            "\"This is the best {cake} I have ever eaten,\" said {friend}.",
            "\"Delicious!\" said {friend} with {their} mouth full.",
            their = cast[1].his
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("{name} Bakes {}", title(&a(cake))), format!("The {}", title(cake))]),
        vec![first, second, third, fourth, last],
    )
}

/// Things are counted, given away and got back, and the numbers are right.
fn sharing(random: &mut Random) -> Story {
    let cast = people(random, 3);
    let (Person { name, he, him, .. }, Person { name: friend, .. }, Person { name: third, .. }) =
        (&cast[0], &cast[1], &cast[2]);
    let He = capital(he);
    let (one, many) = random.pick(&[
        ("apple", "apples"),
        ("pear", "pears"),
        ("shell", "shells"),
        ("nut", "nuts"),
        ("marble", "marbles"),
        ("cookie", "cookies"),
        ("plum", "plums"),
        ("feather", "feathers"),
    ]);
    let start = random.between(6, 12);
    let give = random.between(1, 3);
    let give_more = random.between(1, start - give - 1).min(3);
    let back = random.between(1, 5);
    let (had, gave, gave_more) = (count(start, one, many), number(give), number(give_more));
    let (left, left_after) = (count(start - give, one, many), count(start - give - give_more, one, many));
    let (got, end) = (count(back, one, many), count(start - give - give_more + back, one, many));
    let day = random.pick(&WEATHER);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "{day}, {name} had {had} in a basket.",
            "{day}, {he} went out and came home with {had}.",
            "{day}, {name} counted {his} {many}. There were {start}.",
            his = cast[0].his,
            start = number(start)
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "On the road {he} met {friend}, {known}.",
            "Then {friend} came along, {known}.",
            known = a(&format!("{} {}", cast[1].is, cast[1].kind))
        ),
        say!(
            random,
            "\"Oh, what nice {many}!\" said {friend}. \"I have none.\"",
            "\"I am so hungry for a bit of luck,\" sighed {friend}. \"I found no {many} today.\""
        ),
        say!(
            random,
            "{name} gave {gave} of the {many} to {friend}. Now {he} had {left}.",
            "So {name} gave {friend} {gave}, and {he} had {left} left."
        ),
    );
    let third_paragraph = paragraph!(
        say!(
            random,
            "At the bridge sat {third}, who looked sad.",
            "A little later they met {third}, who had lost everything in the river."
        ),
        say!(
            random,
            "\"Do not be sad,\" said {name}, and {he} gave {third} {gave_more}.",
            "{name} thought for a moment. Then {he} gave {third} {gave_more} as well."
        ),
        say!(
            random,
            "Now there {were} {left_after} in the basket.",
            "That left {him} with {left_after}.",
            were = if start - give - give_more == 1 { "was" } else { "were" }
        ),
        say!(
            random,
            "\"You will have nothing left if you go on like this,\" said {friend}.",
            "\"Why do you give so much away?\" asked {friend}."
        ),
        say!(random, "\"It makes me happy,\" said {name}.", "\"I still have enough,\" {he} answered."),
    );
    let moral = random.pick(&[
        "what we give away comes back to us",
        "sharing makes everyone richer",
        "a kind heart is never poor",
    ]);
    let last = paragraph!(
        say!(
            random,
            "The next day, {third} came to the door with {got}. \"These are for you,\" said {third}.",
            "In the evening, {friend} and {third} brought {name} a present: {got}!"
        ),
        say!(
            random,
            "{name} put them into the basket and counted again. Now {he} had {end}.",
            "{He} counted everything together, and there were {end}.",
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("{name} and the {}", title(&had)), format!("{} for Everyone", title(many))]),
        vec![first, second, third_paragraph, last],
    )
}

/// The fast and proud one rests too early.
fn race(random: &mut Random) -> Story {
    let mut cast = people(random, 3);
    cast[0].is = random.pick(&["proud", "boastful", "vain"]);
    cast[1].is = random.pick(&["patient", "steady", "quiet", "careful"]);
    let (
        Person { name: fast, he, his, .. },
        Person { name: slow, he: they, his: their, .. },
        Person { name: judge, .. },
    ) = (&cast[0], &cast[1], &cast[2]);
    let (He, They) = (capital(he), capital(they));
    let goal = random.pick(&[
        "the big oak",
        "the church tower",
        "the stone bridge",
        "the top of the hill",
        "the lighthouse",
        "the mill",
    ]);
    let rest =
        random.pick(&["in the shade of a tree", "on a soft heap of hay", "beside a cool stream", "on a warm stone"]);
    let day = random.pick(&WEATHER);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "\"Nobody is as fast as I am,\" {fast} said every day.",
            "{fast} could run very fast and told everyone about it."
        ),
        say!(
            random,
            "{slow} was {known} and not fast at all.",
            "{fast} often laughed at {slow}, {known} who was never in a hurry.",
            known = a(&format!("{} {}", cast[1].is, cast[1].kind))
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "{day}, {slow} said, \"Let us race to {goal}.\"",
            "{day}, {slow} had heard enough. \"I will race you to {goal},\" {they} said."
        ),
        say!(
            random,
            "{fast} laughed so loudly that the birds flew up.",
            "\"You?\" laughed {fast}. \"You will still be running tomorrow!\""
        ),
        say!(random, "{judge} counted, \"One, two, three, go!\"", "\"Ready? Go!\" called {judge}."),
    );
    let third = paragraph!(
        say!(
            random,
            "{fast} shot away like an arrow, and soon {slow} was far behind.",
            "At once {fast} was in front, and {slow} was only a dot on the road."
        ),
        say!(
            random,
            "\"I have so much time that I can rest,\" {he} thought, and {he} lay down {rest}.",
            "Because {he} was so far ahead, {fast} lay down {rest}."
        ),
        say!(
            random,
            "The sun was warm, and so {he} fell asleep.",
            "{He} only wanted to close {his} eyes for a moment, but {he} fell asleep."
        ),
        say!(
            random,
            "{slow} did not stop. Step by step, {they} walked on.",
            "{slow} came closer and closer, passed {fast} quietly, and went on."
        ),
    );
    let moral = random.pick(&[
        "slow and steady wins the race",
        "it is better to go on than to boast",
        "pride makes us careless",
    ]);
    let last = paragraph!(
        say!(
            random,
            "When {fast} woke up, the sun was already low. {He} ran as fast as {he} could.",
            "A cold wind woke {fast}. {He} jumped up and ran."
        ),
        say!(
            random,
            "But it was too late, for {slow} was already at {goal}.",
            "But {slow} stood at {goal} and waved {their} hat."
        ),
        say!(
            random,
            "\"The winner is {slow}!\" called {judge}.",
            "{judge} gave {slow} a crown of flowers. {They} had won."
        ),
        say!(
            random,
            "\"I am sorry that I laughed at you,\" said {fast}.",
            "{fast} was ashamed and said, \"You ran well.\""
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("The Race to {}", title(goal)), format!("{fast} and {slow}")]),
        vec![first, second, third, last],
    )
}

/// Bad weather, a creature in need, and a night indoors.
fn storm(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, .. }, Person { name: friend, .. }) = (&cast[0], &cast[1]);
    let He = capital(he);
    let (sky, ground) = random.pick(&[
        ("It rained all day", "the path was muddy"),
        ("It snowed all day", "the road was white and deep"),
        ("The wind blew all day", "branches lay on the road"),
        ("It hailed all morning", "the ground was slippery"),
    ]);
    let small = random.pick(&["bird", "kitten", "puppy", "lamb", "duckling", "owl"]);
    let place =
        random.pick(&["under a bush", "behind a fallen tree", "beside the fence", "in a ditch", "under the bridge"]);
    let warm = random.pick(&["a blanket", "an old scarf", "a soft towel", "a woollen coat"]);
    let food = random.pick(&["warm milk", "bread and honey", "a bowl of soup", "a few crumbs"]);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(random, "{sky}, so {ground}.", "{sky}, and therefore {ground}."),
        say!(
            random,
            "Because of that, {name} stayed at home and sat by the fire.",
            "Nobody wanted to go outside, and {name} looked out of the window."
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "Suddenly {he} heard a small cry.",
            "Then there was a sound outside, very thin and sad.",
            "Just before dark, {he} heard something cry."
        ),
        say!(
            random,
            "\"What was that?\" said {name}. {He} put on {his} boots, because {ground}.",
            "{He} put on {his} coat, took a lamp and went out, although {ground}."
        ),
        say!(
            random,
            "{He} looked everywhere, and {place} {he} found a little {small}. It was cold and wet.",
            "There, {place}, sat a little {small} that shook with cold."
        ),
    );
    let third = paragraph!(
        say!(
            random,
            "\"You poor thing,\" said {name}. {He} wrapped the {small} in {warm} and carried it home.",
            "{name} picked it up gently, wrapped it in {warm}, and brought it into the house."
        ),
        say!(
            random,
            "By the fire the {small} became warm, and so it stopped shaking.",
            "It was hungry, so {he} gave it {food}, and it ate everything."
        ),
        say!(
            random,
            "All night the storm went on, but inside it was quiet and warm.",
            "Outside the thunder rolled, but the {small} slept in {name}'s lap."
        ),
    );
    let moral = random.pick(&[
        "even the smallest cry should be heard",
        "a warm house is for sharing",
        "after every storm the sun comes back",
    ]);
    let last = paragraph!(
        say!(random, "In the morning the sky was blue.", "The next morning the sun was shining again."),
        say!(
            random,
            "{friend} came to visit and saw the {small}. \"Who is that, and may it stay?\" asked {friend}.",
            "\"Will it stay here?\" asked {friend}, who had come to see if all was well."
        ),
        say!(
            random,
            "\"It may stay as long as it likes,\" said {name}.",
            "\"Of course, it is my guest,\" said {name}. \"We found each other in the storm.\""
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("The {} in the Storm", title(small)), format!("{name} and the Little {}", title(small))]),
        vec![first, second, third, last],
    )
}

/// The first try is made of something weak and fails; the second holds.
fn building(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, .. }, Person { name: friend, he: they, .. }) = (&cast[0], &cast[1]);
    let He = capital(he);
    let (what, purpose) = random.pick(&[
        ("bridge", "cross the stream"),
        ("tree house", "see the whole valley"),
        ("raft", "sail across the lake"),
        ("hut", "sit outside in the rain"),
        ("boat", "visit the island"),
        ("tower", "look at the stars"),
    ]);
    let weak = random.pick(&["straw", "paper", "thin sticks", "leaves", "reeds"]);
    let strong = random.pick(&["strong boards", "thick logs", "heavy stones", "good oak", "long beams"]);
    let trouble = random.pick(&[
        "the wind came and blew it down",
        "it broke with a loud crack",
        "it fell down with a crash",
        "the rain came and washed it away",
    ]);
    let days = random.between(3, 9);
    let number_of_days = number(days);
    let day = random.pick(&WEATHER);
    let first = paragraph!(
        opening(random, &cast[0]),
        introduce(random, &cast[0], &cast[1]),
        say!(
            random,
            "They wanted to {purpose}, so they needed {article}.",
            "\"If we had {article},\" said {name}, \"we could {purpose}.\"",
            article = a(what)
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "{day}, {name} said, \"Let us take {weak}. That will be quick.\"",
            "{day}, they started. {name} was in a hurry, so {he} used {weak}."
        ),
        say!(
            random,
            "\"Is that strong enough?\" asked {friend}.",
            "\"I am not sure that it will hold,\" said {friend}."
        ),
        say!(
            random,
            "\"Of course it is,\" said {name}. By noon the {what} was ready.",
            "But {name} did not listen, and by evening the {what} was ready."
        ),
        say!(random, "But because it was made of {weak}, {trouble}.", "They were very pleased, until {trouble}."),
    );
    let third = paragraph!(
        say!(random, "\"All that work for nothing,\" said {name}.", "{name} looked at the heap and sighed."),
        say!(
            random,
            "\"We will try again,\" {friend} answered, \"but this time with {strong}.\"",
            "{friend} did not laugh. \"Let us begin again,\" {they} said, \"and use {strong}.\""
        ),
        say!(
            random,
            "It was hard work. They carried, measured and hammered for {number_of_days} days.",
            "For {number_of_days} days they worked from morning until night."
        ),
        say!(
            random,
            "When they were tired, they sang, and so the work was easier.",
            "{name} held the wood while {friend} used the hammer, and then they changed places."
        ),
    );
    let moral = random.pick(&[
        "good work takes time",
        "it is no shame to begin again",
        "what is built well will last",
        "a friend's advice is worth hearing",
    ]);
    let last = paragraph!(
        say!(
            random,
            "At last the new {what} was ready. {name} jumped on it, but it did not move.",
            "Then the {what} stood there, and this time it was strong."
        ),
        say!(
            random,
            "The wind came, and the rain came, but the {what} held.",
            "That night there was a storm, but in the morning the {what} was still there."
        ),
        say!(
            random,
            "Now they could {purpose} whenever they wanted.",
            "\"Now we can {purpose}!\" {he} shouted.",
            "{He} was so happy that {he} could not stop laughing. Now they could {purpose}."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("The New {}", title(what)), format!("{name} and {friend} Build {}", title(&a(what)))]),
        vec![first, second, third, last],
    )
}

/// Seeds, patience, and a harvest that is divided.
fn garden(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, .. }, Person { name: friend, he: they, .. }) = (&cast[0], &cast[1]);
    let He = capital(he);
    let (one, many) = random.pick(&[
        ("pumpkin", "pumpkins"),
        ("carrot", "carrots"),
        ("bean", "beans"),
        ("melon", "melons"),
        ("sunflower", "sunflowers"),
        ("tomato", "tomatoes"),
        ("turnip", "turnips"),
    ]);
    let seeds = random.between(4, 12);
    let lost = random.between(1, 3);
    let grown = seeds - lost;
    let (planted, eaten, ripe) = (count(seeds, "seed", "seeds"), number(lost), count(grown, one, many));
    let given = random.between(1, grown);
    let (gave, kept) =
        (number(given), if grown == given { "none".to_string() } else { number(grown - given).to_string() });
    let thief = random.pick(&["a crow", "a snail", "a hen", "a mole"]);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "Behind the house was a small garden where nothing grew.",
            "{He} had a little garden with good, dark earth."
        ),
        say!(
            random,
            "In spring, {name} planted {planted} in a row.",
            "One day in spring, {he} bought {planted} and planted them all."
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "Every morning {he} gave them water, because without water nothing grows.",
            "The weather was dry, so {he} watered the garden every evening."
        ),
        say!(
            random,
            "\"Nothing is happening,\" said {friend}, who looked over the fence.",
            "{friend} came by and asked, \"Where are your {many}?\""
        ),
        say!(
            random,
            "\"You must be patient,\" said {name}. \"They are growing under the earth.\"",
            "\"They are still asleep,\" said {name}. \"Come back in a week.\""
        ),
    );
    let third = paragraph!(
        say!(
            random,
            "One night {thief} ate {eaten} of the young plants.",
            "Then {thief} came and ate {eaten} of them."
        ),
        say!(
            random,
            "{name} was sad, but {he} built a fence, and after that the others were safe.",
            "So {name} put up a fence around the rest, and nobody ate any more of them."
        ),
        say!(
            random,
            "The sun shone, the rain fell, and the plants grew higher and higher.",
            "Week after week they grew, until they were as tall as {name}."
        ),
    );
    let moral = random.pick(&[
        "good things need time and care",
        "those who water will also harvest",
        "patience makes a garden grow",
    ]);
    let harvest = paragraph!(
        say!(
            random,
            "In summer {he} counted {ripe}.",
            "At the end of summer there {was} {ripe} in the garden.",
            was = if grown == 1 { "was" } else { "were" }
        ),
        say!(
            random,
            "{name} gave {gave} to {friend} and kept {kept}.",
            "\"{Gave} for you,\" {he} said to {friend}, and so {he} had {kept} left for {himself}.",
            Gave = capital(gave),
            himself = if *he == "she" { "herself" } else { "himself" }
        ),
        say!(
            random,
            "\"Next year I will plant a garden too,\" said {friend}.",
            "\"I will never laugh at {article} again,\" {they} said.",
            article = a("small seed")
        ),
        say!(
            random,
            "{name} washed {his} hands and was proud.",
            "They sat in the grass and looked at the empty garden, which was already waiting for spring."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[
            format!("{name}'s Garden"),
            format!("The {}", title(&planted)),
            format!("{} in the Garden", title(many)),
        ]),
        vec![first, second, third, harvest],
    )
}

/// A promise, something that tempts, and what follows from keeping or breaking it.
fn promise(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, .. }, Person { name: friend, he: they, him: them, .. }) = (&cast[0], &cast[1]);
    let (He, They) = (capital(he), capital(they));
    let (task, done, due) = random.pick(&[
        ("feed my chickens", "fed the chickens", "the chickens will be hungry"),
        ("water my roses", "watered the roses", "the roses will dry out"),
        ("watch my sheep", "watched the sheep", "the sheep will run away"),
        ("close my window before dark", "closed the window", "the rain will come in"),
        ("shut my gate before night", "shut the gate", "the hens will run away"),
    ]);
    let (fun, doing) = random.pick(&[
        ("the fair in the next town", "eat sugar and watch the dancers"),
        ("a swim in the lake", "jump from the rocks"),
        ("a game in the meadow", "play until dark"),
        ("a ride on the big wagon", "see the whole country"),
        ("a puppet show", "laugh with the others"),
    ]);
    let kept = random.chance(55);
    let day = random.pick(&WEATHER);
    let first = paragraph!(
        opening(random, &cast[0]),
        introduce(random, &cast[0], &cast[1]),
        say!(
            random,
            "{day}, {friend} had to go on a journey. \"Will you {task}?\" {they} asked. \"If you forget it, {due}.\"",
            "{day}, {friend} said, \"I must go away until tomorrow. Please {task}, or {due}.\""
        ),
        say!(random, "\"I promise,\" said {name}.", "\"You can count on me,\" {name} promised."),
    );
    let second = paragraph!(
        say!(
            random,
            "In the afternoon some children came past and told {him} about {fun}.",
            "Soon after that, {he} heard of {fun}.",
            him = cast[0].him
        ),
        say!(
            random,
            "\"Come with us!\" they called. \"We will {doing}.\"",
            "{name} wanted to go very much, to {doing}."
        ),
        if kept {
            say!(
                random,
                "But {name} thought of {his} promise and stayed. {He} {done}, just as {he} had said.",
                "\"I cannot come,\" said {name}. \"I have made a promise.\" And {he} {done}."
            )
        } else {
            say!(
                random,
                "\"I can do it later,\" thought {name}, and {he} went along. It was so much fun that {he} forgot everything.",
                "{He} meant to be back early, but it grew late, and {name} forgot {his} promise."
            )
        },
    );
    let last = if kept {
        let moral = random.pick(&[
            "a promise is a promise",
            "those who keep their word are trusted",
            "a kept promise makes the heart light",
        ]);
        paragraph!(
            say!(
                random,
                "The next day {friend} came home and saw that everything was well.",
                "When {friend} came back, all was just as it should be."
            ),
            say!(
                random,
                "\"You kept your promise,\" {they} said. \"Next time we will go to have fun together.\"",
                "{They} had brought a present. \"This is for you, because you kept your word,\" {they} said."
            ),
            ending(random, &cast[0], &cast[1], moral),
        )
    } else {
        let moral = random.pick(&[
            "a promise is a promise",
            "a broken word is hard to mend",
            "it is better to say no than to promise and forget",
        ]);
        paragraph!(
            say!(
                random,
                "The next day {friend} came home and was very sad, for it had happened just as {they} had feared.",
                "When {friend} came back, {they} saw at once what had happened."
            ),
            say!(
                random,
                "\"I am so sorry,\" said {name}. \"I forgot my promise. I will help you to put it right.\"",
                "{name} did not make excuses. \"It is my fault,\" {he} said, \"and I will work until all is well again.\""
            ),
            say!(
                random,
                "They worked all day, and in the evening {friend} could smile again.",
                "It took a whole week, but {he} did not give up, and {friend} forgave {him}.",
                him = cast[0].him
            ),
            say!(
                random,
                "The next time {friend} asked {name} for help, {he} did not forget.",
                "After that, {friend} could trust {him} again, and {name} was glad to be trusted by {them}.",
                him = cast[0].him
            ),
            ending(random, &cast[0], &cast[1], moral),
        )
    };
    let heading = if kept { format!("{name} Keeps a Promise") } else { format!("{name} Forgets a Promise") };
    (heading, vec![first, second, last])
}

/// A chain of swaps in which each thing is handed on.
fn trading(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, him, .. }, Person { name: friend, .. }) = (&cast[0], &cast[1]);
    let He = capital(he);
    let goods = random.pick_some(
        &[
            "button",
            "rope",
            "clay pot",
            "pair of gloves",
            "fishing rod",
            "warm coat",
            "wooden flute",
            "sack of corn",
            "lantern",
            "pocket knife",
            "jar of honey",
            "wheel",
        ],
        4,
    );
    let traders = random.pick_some(
        &[
            "a farmer",
            "a fisherman",
            "a sailor",
            "a baker",
            "a shepherd",
            "a miller",
            "a tailor",
            "an old woman",
            "a smith",
        ],
        3,
    );
    let asks = ["I have been looking for {} for years", "What I need most is {}", "If only I had {}"];
    let asks = random.pick_some(&asks, 3);
    let wish = random.pick(&["a pony", "a puppy", "a kite", "a little boat", "a drum", "a swing"]);
    let (start, day) = (a(goods[0]), random.pick(&WEATHER));
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "{He} wished for {wish}, but {he} had no money. All {he} had was {start}.",
            "{He} owned nothing but {start}, and yet {he} dreamed of {wish}."
        ),
        say!(
            random,
            "{day}, {he} took the {thing} and went to the market.",
            "{day}, {name} put the {thing} into {his} bag and set out.",
            thing = goods[0]
        ),
    );
    let mut swaps = vec![];
    for step in 0..3 {
        let (who, gives, gets) = (traders[step], goods[step], goods[step + 1]);
        let (wanted, offered, the) =
            (asks[step].replace("{}", &a(gives)), a(gets), who.split_once(' ').map_or(who, |(_, noun)| noun));
        swaps.push(say!(
            random,
            "{He} met {who}. \"{wanted},\" said the {the}. \"I will give you {offered} for it.\" So {name} gave away the {gives} and got {offered}.",
            "Then {he} came to {who} who had {offered}. \"{wanted},\" the {the} said. They shook hands, and now {name} had {offered} instead of the {gives}.",
            "Next, {name} talked with {who}. \"{wanted},\" said the {the}, and soon the {gives} was traded for {offered}.",
        ));
    }
    let moral = random.pick(&[
        "small things can grow into great ones",
        "what one person does not need makes another happy",
        "a fair trade makes two people glad",
    ]);
    let end = goods[3];
    let last = paragraph!(
        say!(
            random,
            "In the evening {he} met {friend}, {known}, who had {wish} but no {end}.",
            "At last {he} saw {friend}, {known}, standing there with {wish}.",
            known = a(&format!("{} {}", cast[1].is, cast[1].kind))
        ),
        say!(
            random,
            "\"Would you give me {wish} for my {end}?\" asked {name}.",
            "\"That is just the {end} that I need!\" said {friend}. \"Do you want {wish} for it?\""
        ),
        say!(
            random,
            "\"With pleasure,\" came the answer, and so {name} went home with {wish}.",
            "They traded, and {name} had {wish} at last. {He} sang all the way home."
        ),
        say!(
            random,
            "All that had begun with {start}.",
            "\"And this morning I had only {start},\" {he} said.",
            "Nobody at home would believe {him}."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("{name} at the Market"), format!("From {} to {}", title(&start), title(wish))]),
        vec![first, swaps.join(" "), last],
    )
}

/// A noise in the night has a harmless cause.
fn noise(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, .. }, Person { name: friend, he: they, .. }) = (&cast[0], &cast[1]);
    let He = capital(he);
    let sound = random.pick(&[
        "knock, knock, knock",
        "scratch, scratch, scratch",
        "tap, tap, tap",
        "creak, creak, creak",
        "bump, bump, bump",
    ]);
    let Sound = capital(sound);
    let (cause, reason) = random.pick(&[
        ("a branch that the wind was blowing against the roof", "the wind was strong"),
        ("a cat that wanted to come in", "it was cold outside"),
        ("the old gate, which nobody had closed", "somebody had forgotten to close it"),
        ("a mouse that was rolling a nut across the floor", "it had found its supper"),
        ("water that dripped into a bucket", "it had rained"),
    ]);
    let fear = random.pick(&["a giant", "a thief", "a dragon", "a ghost", "a wolf"]);
    let place = random.pick(&["in the attic", "behind the kitchen", "outside the window", "in the cellar"]);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "One night {he} woke up because of a strange noise.",
            "One dark night, when everyone was asleep, {name} heard something."
        ),
        say!(
            random,
            "\"{Sound},\" it went {place}.",
            "It came from {place}: {sound}.",
            "{Sound}! Then it was quiet. {Sound}!"
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "{name} pulled the blanket over {his} head. \"That must be {fear},\" {he} thought.",
            "\"What if it is {fear}?\" whispered {name}, and {his} heart beat fast."
        ),
        say!(
            random,
            "{friend}, who was staying for the night, woke up too. \"Are you afraid?\" {they} asked.",
            "{He} woke {friend}, {his} friend, who was sleeping in the other bed. \"Do you hear it?\" {he} asked."
        ),
        say!(
            random,
            "\"A little,\" said {name}. \"But I want to know what it is.\"",
            "\"Yes,\" said {name}, \"but if we go together, I am less afraid.\""
        ),
    );
    let third = paragraph!(
        say!(
            random,
            "So they lit a candle and went to look, hand in hand.",
            "They took a lamp and walked on the tips of their toes."
        ),
        say!(
            random,
            "The floor was cold, and their shadows were as tall as trees.",
            "With every step the noise became louder."
        ),
        say!(random, "\"{Sound},\" it went again, now very near.", "Then they heard it again, quite close: {sound}."),
    );
    let moral = random.pick(&[
        "things are less frightening when we look at them",
        "a friend makes the night less dark",
        "being brave means going on although we are afraid",
    ]);
    let last = paragraph!(
        say!(
            random,
            "{name} held up the light. It was not {fear} at all. It was {cause}!",
            "And what did they see? No {beast}, but {cause}.",
            beast = fear.split_once(' ').map_or(fear, |(_, noun)| noun)
        ),
        say!(random, "It had made the noise because {reason}.", "\"Of course,\" said {friend}, \"because {reason}.\""),
        say!(
            random,
            "They laughed until their stomachs hurt, and then they went back to bed.",
            "Both of them had to laugh, and soon they were fast asleep."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&["The Noise in the Night".to_string(), format!("{name} Hears a Noise"), Sound.clone()]),
        vec![first, second, third, last],
    )
}

/// Help for an old neighbour, day after day, and a reward nobody asked for.
fn neighbour(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, him, .. }, Person { name: friend, .. }) = (&cast[0], &cast[1]);
    let He = capital(he);
    let (old, she, her) = random.pick(&[
        ("Mrs. Brown", "she", "her"),
        ("Mr. Green", "he", "his"),
        ("Mrs. Hill", "she", "her"),
        ("Mr. Stone", "he", "his"),
        ("Mrs. Wood", "she", "her"),
        ("Mr. White", "he", "his"),
    ]);
    let She = capital(she);
    let (task, did, cause) = random.pick(&[
        ("carry water", "carried water", "the well was far away"),
        ("chop wood", "chopped wood", "the winter was coming"),
        ("sweep the yard", "swept the yard", "the leaves were falling"),
        ("clear the snow", "cleared the snow", "it had snowed for days"),
        ("pick the cherries", "picked the cherries", "the tree was too high"),
    ]);
    let reward = random.pick(&[
        "an old silver watch",
        "a book full of pictures",
        "a box of paints",
        "a little wooden horse",
        "a jar of golden honey",
        "a warm red cap",
    ]);
    let days = random.between(3, 12);
    let number_of_days = number(days);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "In the next house lived {old}, who was very old and lived alone.",
            "{old}, who was old and tired, lived across the road."
        ),
        say!(
            random,
            "It was hard for {old} to {task}, because {cause}.",
            "\"I can no longer {task},\" said {old}, \"and {cause}.\""
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "\"I will help you,\" said {name}, and {he} {did} the whole afternoon.",
            "{name} saw this, so {he} went over and {did} until evening."
        ),
        say!(
            random,
            "{friend} came by with a ball. \"Come and play,\" said {friend}. \"What do you get for all that work?\"",
            "\"What do you get for it?\" asked {friend}."
        ),
        say!(
            random,
            "\"I do not do it for money,\" {name} answered. \"Come, with two of us it will be quicker.\"",
            "\"Nothing,\" said {name}, \"but {old} needs me.\""
        ),
        say!(
            random,
            "So it went on for {number_of_days} days.",
            "{He} came again the next day, and the day after, {number_of_days} days in all."
        ),
    );
    let moral =
        random.pick(&["kindness is its own reward", "many hands make light work", "those who help are never alone"]);
    let last = paragraph!(
        say!(
            random,
            "On the last day, {old} opened a drawer and took out {reward}.",
            "When everything was done, {old} said, \"Wait,\" and came back with {reward}."
        ),
        say!(
            random,
            "\"I have kept this for many years,\" {she} said. \"Now it is yours, because you have a good heart.\"",
            "\"This is for you,\" {she} said, \"not as pay, but because you are my friend.\" {She} had tears in {her} eyes."
        ),
        say!(
            random,
            "{name} did not know what to say and thanked {old} again and again.",
            "It made {him} happier than anything else in the world."
        ),
        say!(
            random,
            "The next time, {friend} came along to help, too.",
            "After that, {friend} also came to help every week."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (random.pick(&[format!("{name} Helps {old}"), format!("{name} and {old}")]), vec![first, second, last])
}

/// Something valuable is found, and its owner too.
fn honest(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, .. }, Person { name: friend, he: they, .. }) = (&cast[0], &cast[1]);
    let found = random.pick(&["a gold ring", "a purse", "a silver key", "a pearl necklace", "a fine watch"]);
    let short = found.rsplit(' ').next().unwrap_or(found);
    let place = random.pick(&[
        "in the grass",
        "under a bench",
        "on the bridge",
        "between two stones",
        "beside the fountain",
        "in the sand",
    ]);
    let owner =
        random.pick(&["the baker", "the teacher", "the doctor", "the postman", "the miller's wife", "the captain"]);
    let Owner = capital(owner);
    let coins = random.between(2, 9);
    let (reward, half) = (count(coins * 2, "coin", "coins"), count(coins, "coin", "coins"));
    let tempting =
        random.pick(&["a new bicycle", "sweets for a whole year", "a ship of our own", "a trip to the city"]);
    let day = random.pick(&WEATHER);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "{day}, {he} walked home with {his} friend {friend}, and something was shining {place}.",
            "{day}, {he} and {his} friend {friend} were playing when they saw something {place}."
        ),
        say!(random, "It was {found}!", "{name} picked it up. It was {found}."),
    );
    let second = paragraph!(
        say!(
            random,
            "\"We are rich!\" cried {friend}. \"Now we can have {tempting}.\"",
            "\"Let us keep it,\" said {friend}. \"We could buy {tempting} with it.\""
        ),
        say!(
            random,
            "\"But it is not ours,\" said {name}. \"Somebody is looking for it.\"",
            "{name} shook {his} head. \"Somebody has lost it and is sad now,\" {he} said."
        ),
        say!(
            random,
            "So they went from door to door and asked.",
            "They asked at the first house, at the second house, and at the third."
        ),
        say!(
            random,
            "At last they came to {owner}, who was searching everywhere.",
            "In the last house lived {owner}, whose eyes were red from crying."
        ),
    );
    let moral = random.pick(&[
        "honesty is worth more than gold",
        "a clear conscience is a soft pillow",
        "what is not ours will never make us happy",
    ]);
    let last = paragraph!(
        say!(
            random,
            "\"Is this yours?\" asked {name}.",
            "{name} held out {his} hand. \"Have you lost this {short}?\" {he} asked."
        ),
        say!(
            random,
            "\"My {short}!\" cried {owner}. \"I thought that I would never see it again.\"",
            "{Owner} laughed and cried at the same time. \"Yes! Where did you find it?\" \"It was {place},\" said {name}."
        ),
        say!(
            random,
            "{Owner} gave them {reward}, so each of them got {half}.",
            "For their honesty they got {reward}. They shared them, and each had {half}."
        ),
        say!(
            random,
            "\"You were right,\" said {friend} on the way home.",
            "\"I am glad that we did not keep it,\" {they} said."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[
            format!("The {}", title(found.split_once(' ').map_or(found, |(_, noun)| noun))),
            format!("What {name} Found"),
        ]),
        vec![first, second, last],
    )
}

/// A way that is blocked, two ideas that fail for a reason, and a third that works.
fn crossing(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, .. }, Person { name: friend, he: they, .. }) = (&cast[0], &cast[1]);
    let (He, They) = (capital(he), capital(they));
    let goal = random.pick(&[
        "Grandmother's house",
        "the market",
        "the school",
        "the harbour",
        "the berry woods",
        "the festival",
    ]);
    let brings =
        random.pick(&["a basket of eggs", "a cake", "a sack of flour", "a bunch of flowers", "a cage with two doves"]);
    let load = brings.split_once(' ').map_or(brings, |(_, noun)| noun);
    let (jump, jump_fails) = random.pick(&[
        ("jump across", "it was too wide"),
        ("wade through", "the water was too deep"),
        ("swim across", "the water was too cold"),
    ]);
    let (walk, walk_fails) = random.pick(&[
        ("walk around", "the way was too long"),
        ("wait until the water goes down", "the clouds were still dark"),
        ("call for help", "nobody was near enough to hear them"),
    ]);
    let solution = random.pick(&["a fallen tree", "a row of flat stones", "an old boat", "a long plank"]);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "One morning {he} had to bring {brings} to {goal}, and {his} friend {friend} came along.",
            "One morning {name} and {his} friend {friend} were on the way to {goal} with {brings}."
        ),
        say!(
            random,
            "It had rained for three days, so the stream was as wide as a river.",
            "Because it had rained all week, the stream was high, and the little bridge was gone."
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "\"We could {jump},\" said {name}. But {jump_fails}.",
            "First {name} wanted to {jump}, but {jump_fails}."
        ),
        say!(
            random,
            "\"Then we could {walk},\" said {friend}. But {walk_fails}.",
            "\"Shall we {walk}?\" asked {friend}. But {walk_fails}."
        ),
        say!(random, "They sat down and thought hard.", "{name} threw a stone into the water and thought."),
    );
    let third = paragraph!(
        say!(
            random,
            "Then {friend} saw {solution} a little way up the stream. \"Look!\" {they} called.",
            "\"I saw something behind the bushes,\" said {friend}. It was {solution}!"
        ),
        say!(
            random,
            "They used it to get to the other side, very slowly and carefully, so the {load} stayed dry.",
            "{name} went first and {friend} came after, and the {load} did not get wet at all."
        ),
        say!(
            random,
            "\"Do not look down,\" said {friend}, and {name} looked only at the other bank.",
            "In the middle {name} nearly fell, but {friend} held {his} hand."
        ),
    );
    let moral = random.pick(&[
        "two heads are better than one",
        "there is nearly always another way",
        "thinking first saves a wet coat",
    ]);
    let last = paragraph!(
        say!(
            random,
            "At noon they came to {goal}, and everyone was glad to see them and the {load}.",
            "When they reached {goal} with the {load}, they were tired but proud."
        ),
        say!(
            random,
            "\"How did you cross the stream?\" people asked. \"With {solution},\" said {name}, \"and with a good friend.\"",
            "{They} told the story three times, and each time the stream became wider.",
            "{He} told everyone how {friend} had found {solution}."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[
            "The Wide Stream".to_string(),
            format!("The Way to {}", title(goal)),
            format!("{name} and {friend} Cross the Stream"),
        ]),
        vec![first, second, third, last],
    )
}

/// Hide and seek: each one is found where that one hid.
fn hiding(random: &mut Random) -> Story {
    let cast = people(random, 4);
    let Person { name, he, his, .. } = &cast[0];
    let He = capital(he);
    let places = random.pick_some(
        &[
            "behind the barn",
            "in the big barrel",
            "under the wagon",
            "up in the pear tree",
            "behind the curtain",
            "under the table",
            "in the tall grass",
            "inside the cupboard",
        ],
        3,
    );
    let clues = random.pick_some(&["a sneeze", "a giggle", "a foot", "a shadow that moved", "the end of a scarf"], 3);
    let limit = random.pick(&[10, 15, 20]);
    let counted = number(limit);
    let (one, two, three) = (&cast[1], &cast[2], &cast[3]);
    let (p1, p2, p3) = (places[0], places[1], places[2]);
    let day = random.pick(&WEATHER);
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "{day}, {name} played hide and seek with {a}, {b} and {c}.",
            "{day}, {a}, {b} and {c} came to play hide and seek.",
            a = one.name,
            b = two.name,
            c = three.name
        ),
        say!(
            random,
            "{name} stood at the wall, closed {his} eyes and counted to {counted}.",
            "\"I will count to {counted},\" said {name}, and {he} turned to the wall."
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "{who} hid {p1}, because nobody ever looked there.",
            "{who} ran away quickly and hid {p1}.",
            who = one.name
        ),
        say!(random, "{who} hid {p2}.", "{who} thought for a moment and then hid {p2}.", who = two.name),
        say!(
            random,
            "{who} was the last and hid {p3}.",
            "Only {who} found no place at first, but then hid {p3}.",
            who = three.name
        ),
        say!(random, "\"Ready or not, here I come!\" called {name}.", "\"I am coming!\" shouted {name}."),
    );
    let mut order = random.pick_some(&[0, 1, 2], 3);
    let mut found = vec![];
    for (turn, who) in order.drain(..).enumerate() {
        let (person, place, clue) = (&cast[who + 1], places[who], clues[turn]);
        let perceived = match clue {
            "a sneeze" | "a giggle" => "heard",
            _ => random.pick(&["saw", "noticed"]),
        };
        let (other, him) = (person.name, person.him);
        found.push(match turn {
            0 => say!(random, "First {he} {perceived} {clue} {place}. \"I have found you, {other}!\" {he} cried.", "At once {he} {perceived} {clue} {place}, and so {other} was found first."),
            1 => say!(random, "Then {he} {perceived} {clue} {place}. It was {other}.", "Next {he} looked {place}, and there was {other}. {He} had {perceived} {clue}."),
            _ => say!(random, "Now only {other} was left. {He} looked and looked, and at last {he} {perceived} {clue} {place}. There {he} found {him}.", "It took a long time to find {other}, but in the end {he} {perceived} {clue} {place}."),
        });
    }
    let moral = random.pick(&[
        "it is worth looking twice",
        "the best games need good friends",
        "those who keep very still are found last",
    ]);
    let last = paragraph!(
        say!(
            random,
            "\"Now we have all three of them,\" said {name}, and they drank cold milk together.",
            "That made three, so everyone was found, and they all sat down in the grass."
        ),
        say!(
            random,
            "\"Tomorrow it is your turn to count,\" {name} told {friend}.",
            "\"Again!\" cried {friend}.",
            friend = one.name
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&["Hide and Seek".to_string(), format!("{name} Counts to {}", title(counted))]),
        vec![first, second, found.join(" "), last],
    )
}

/// A letter goes from hand to hand and the answer comes back.
fn letter(random: &mut Random) -> Story {
    let cast = people(random, 3);
    let (
        Person { name, he, his, him, .. },
        Person { name: friend, he: they, .. },
        Person { name: bearer, is, kind, .. },
    ) = (&cast[0], &cast[1], &cast[2]);
    let (He, They) = (capital(he), capital(they));
    let far = random.pick(&[
        "beyond the mountains",
        "on the other side of the lake",
        "in the big city",
        "on a far island",
        "at the end of the railway",
    ]);
    let (season, weather, written) = random.pick(&[
        ("winter", "the snow was deep", "the snow is deep"),
        ("summer", "the days were long", "the days are long"),
        ("autumn", "the leaves were red", "the leaves are red"),
        ("spring", "the first flowers were out", "the first flowers are out"),
    ]);
    let gift = random.pick(&[
        "a pressed flower",
        "a drawing of the house",
        "a blue feather",
        "a ribbon",
        "a smooth white stone",
    ]);
    let weeks = random.between(2, 8);
    let number_of_weeks = number(weeks);
    let carrier = a(&format!("{is} {kind}"));
    let first = paragraph!(
        opening(random, &cast[0]),
        say!(
            random,
            "{His} friend {friend} had moved away and now lived {far}.",
            "{friend}, {his} dearest friend, lived far away, {far}.",
            His = capital(his)
        ),
        say!(
            random,
            "It was {season}, and {weather}. {name} missed {friend} very much.",
            "When {season} came and {weather}, {name} felt lonely."
        ),
    );
    let second = paragraph!(
        say!(random, "So {he} sat down and wrote a letter.", "\"I will write a letter,\" {he} decided."),
        say!(
            random,
            "\"Dear {friend},\" {he} wrote, \"here {written}. When will you come to visit me?\"",
            "{He} wrote, \"Dear {friend}, I think of you every day. Please come and see me.\""
        ),
        say!(
            random,
            "{He} put {gift} into the letter and gave it to {bearer}, {carrier}.",
            "Then {he} added {gift} and asked {bearer}, {carrier}, to carry it."
        ),
        say!(
            random,
            "\"I will bring it there,\" said {bearer}, \"even if the way is long.\"",
            "{bearer} put it into a bag and set out at once."
        ),
    );
    let third = paragraph!(
        say!(random, "One week went by, and then another.", "{name} waited and waited."),
        say!(
            random,
            "Every morning {he} looked down the road, but nobody came.",
            "\"Perhaps the letter is lost,\" {he} thought."
        ),
        say!(
            random,
            "After {number_of_weeks} weeks there was a knock at the door.",
            "But when {number_of_weeks} weeks had passed, somebody knocked."
        ),
    );
    let moral = random.pick(&[
        "a few kind words can travel far",
        "true friends stay close even when they are far away",
        "waiting is easier with hope",
    ]);
    let last = paragraph!(
        say!(
            random,
            "It was not a letter. It was {friend}! {They} still had {gift} in {their} hand.",
            "There stood {friend}, who had come the whole way. \"I got your letter,\" {they} said, and showed {him} {gift}.",
            their = cast[1].his
        ),
        say!(
            random,
            "\"I wanted to answer you myself,\" said {friend}.",
            "\"An answer on paper would have been too slow,\" {they} said and laughed."
        ),
        say!(
            random,
            "They talked all night, and they thanked {bearer}, who had carried the letter so far.",
            "{name} called {bearer} too, and the three of them had supper together."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("A Letter to {friend}"), format!("{name} Writes a Letter")]),
        vec![first, second, third, last],
    )
}

/// Something is broken by accident, the truth is told, and it is mended.
fn repair(random: &mut Random) -> Story {
    let cast = people(random, 2);
    let (Person { name, he, his, .. }, Person { name: friend, he: they, .. }) = (&cast[0], &cast[1]);
    let (He, They) = (capital(he), capital(they));
    let (what, with, break_into) = random.pick(&[
        ("vase", "glue", "pieces"),
        ("chair", "a nail", "parts"),
        ("plate", "glue", "pieces"),
        ("toy boat", "a drop of tar", "parts"),
        ("music box", "a new spring", "parts"),
        ("clay bird", "wet clay", "pieces"),
    ]);
    let pieces = random.between(3, 9);
    let number_of_pieces = number(pieces);
    let accident = random.pick(&[
        "turned around too quickly",
        "was running through the room",
        "tripped over the carpet",
        "reached for a cookie",
    ]);
    let blame = random.pick(&["the cat", "the wind", "the dog", "nobody at all"]);
    let day = random.pick(&WEATHER);
    let first = paragraph!(
        opening(random, &cast[0]),
        introduce(random, &cast[0], &cast[1]),
        say!(
            random,
            "{friend} owned {article} that was older than the house itself.",
            "On the table at {friend}'s house stood {article} that everyone loved.",
            article = a(what)
        ),
    );
    let second = paragraph!(
        say!(
            random,
            "{day}, {name} was there alone and {accident}.",
            "{day}, {he} came to visit. While {friend} was in the garden, {he} {accident}."
        ),
        say!(
            random,
            "Crash! The {what} fell to the floor and broke into {number_of_pieces} {break_into}.",
            "The {what} fell down, and now there were {number_of_pieces} {break_into} on the floor."
        ),
        say!(
            random,
            "\"Oh no,\" whispered {name}. {He} could say that it had been {blame}.",
            "{His} face turned white. \"I could say it was {blame},\" {he} thought.",
            His = capital(his)
        ),
    );
    let third = paragraph!(
        say!(
            random,
            "But that would have been a lie, and {he} felt it in {his} stomach.",
            "{He} thought about it for a long time, but {he} did not want to lie to a friend."
        ),
        say!(
            random,
            "When {friend} came in, {name} said, \"I broke your {what}. I am very sorry.\"",
            "So {he} went out to {friend} and said, \"I have broken your {what}. It was my fault.\""
        ),
        say!(
            random,
            "{friend} was quiet for a moment. \"Thank you for telling me the truth,\" {they} said.",
            "{They} looked sad at first. Then {they} said, \"I am glad that you told me yourself.\""
        ),
    );
    let moral = random.pick(&[
        "the truth is always the shortest way",
        "what is broken can often be mended",
        "a true word mends more than glue",
    ]);
    let last = paragraph!(
        say!(
            random,
            "Together they picked up all {number_of_pieces} {break_into} and mended the {what} with {with}.",
            "They took {with} and put the {number_of_pieces} {break_into} together, one by one."
        ),
        say!(
            random,
            "In the evening the {what} stood in its place again. You could see the cracks, but it held.",
            "It took until supper, and then the {what} was nearly as good as new."
        ),
        say!(
            random,
            "\"I like it even better now,\" said {friend}, \"because we mended it together.\"",
            "\"Each crack will remind me of today,\" {they} said."
        ),
        ending(random, &cast[0], &cast[1], moral),
    );
    (
        random.pick(&[format!("The Broken {}", title(what)), format!("{name} Tells the Truth")]),
        vec![first, second, third, last],
    )
}

"""Words of the bundled corpus, as data. Pairs are praise first, blame second."""

# kind of aspect: noun, verb
ASPECTS = {
    "story": [
        ("plot", "is"),
        ("script", "is"),
        ("ending", "is"),
        ("dialogue", "is"),
        ("premise", "is"),
        ("final act", "is"),
        ("mystery", "is"),
        ("love story", "is"),
        ("last twist", "is"),
        ("jokes", "are"),
        ("flashbacks", "are"),
        ("opening scenes", "are"),
    ],
    "people": [
        ("acting", "is"),
        ("lead", "is"),
        ("supporting cast", "is"),
        ("villain", "is"),
        ("narrator", "is"),
        ("child actor", "is"),
        ("two leads", "are"),
        ("performances", "are"),
        ("minor characters", "are"),
        ("dancers", "are"),
    ],
    "look": [
        ("photography", "is"),
        ("lighting", "is"),
        ("set design", "is"),
        ("animation", "is"),
        ("camera work", "is"),
        ("costumes", "are"),
        ("landscapes", "are"),
        ("special effects", "are"),
        ("street scenes", "are"),
    ],
    "sound": [
        ("score", "is"),
        ("sound design", "is"),
        ("theme tune", "is"),
        ("songs", "are"),
        ("choruses", "are"),
        ("voices", "are"),
    ],
    "pace": [
        ("pacing", "is"),
        ("editing", "is"),
        ("direction", "is"),
        ("first hour", "is"),
        ("second half", "is"),
        ("chase scenes", "are"),
        ("fight scenes", "are"),
    ],
}

# "any" fits every aspect and the film itself.
ADJECTIVES = {
    "any": (
        "great superb wonderful impressive memorable delightful excellent splendid brilliant "
        "beautiful remarkable enjoyable fine lovely",
        "terrible dull poor awful disappointing forgettable dreadful bland tiresome weak "
        "lifeless tedious mediocre feeble",
    ),
    "story": (
        "clever witty gripping moving original touching sharp satisfying surprising honest wise",
        "predictable muddled thin hollow silly clumsy contrived confusing shallow trite stale",
    ),
    "people": (
        "charming convincing warm magnetic subtle graceful generous fearless funny tender",
        "wooden stiff unconvincing irritating cold miscast flat charmless awkward smug",
    ),
    "look": (
        "gorgeous striking vivid elegant luminous rich detailed inventive radiant",
        "ugly cheap drab murky shoddy garish careless blurred lazy",
    ),
    "sound": (
        "haunting stirring catchy soaring lively melodic joyful delicate",
        "shrill grating tuneless intrusive monotonous leaden bombastic jarring",
    ),
    "pace": (
        "brisk assured tight confident thrilling nimble steady energetic",
        "sluggish slack chaotic aimless plodding uneven choppy exhausting",
    ),
}

# Praise and blame share these: alone they say nothing.
SHARED = "slow quiet long strange simple dark familiar loud modest serious old-fashioned unusual"

VERDICTS = (
    (
        "wins you over",
        "stays with you for days",
        "earns its tears",
        "finds something new to say",
        "rewards your patience",
        "holds your attention",
        "keeps every promise that it makes",
        "trusts its audience",
        "gets better with every scene",
        "lands its last joke perfectly",
        "makes two hours feel like one",
        "deserves a wide audience",
        "leaves you wanting more",
        "knows exactly what it wants to be",
        "treats its characters with respect",
        "lifts the spirits",
        "hits every note that it aims for",
        "has a big heart",
        "draws you in within minutes",
        "improves on the novel",
        "captures a whole generation",
        "breathes fresh air into old material",
        "builds to a triumphant finish",
        "charms even the sceptics",
    ),
    (
        "wastes its cast",
        "outstays its welcome",
        "runs out of ideas",
        "forgets its own story",
        "tests your patience",
        "loses its way",
        "breaks every promise that it makes",
        "talks down to its audience",
        "gets worse with every scene",
        "misses its last chance badly",
        "makes one hour feel like three",
        "deserves to be forgotten",
        "leaves you cold",
        "copies better films",
        "treats its characters like furniture",
        "drains the spirits",
        "falls apart in front of you",
        "bores everyone in the room",
        "pushes you away within minutes",
        "betrays the novel",
        "insults a whole generation",
        "repeats every cliche of its kind",
        "stumbles to a ridiculous finish",
        "annoys even the admirers",
    ),
)

VIEWERS = (
    (
        "I laughed until the lights came up",
        "I stayed in my seat until the last credit",
        "I wanted to see it again the same night",
        "I forgot that I was in a cinema",
        "I called my sister to recommend it",
        "I smiled all the way home",
        "I would gladly pay for a second ticket",
        "the whole room applauded",
        "my children still talk about it",
        "nobody around me wanted it to stop",
        "strangers hugged each other in the foyer",
        "my father wept happily beside me",
        "I bought the soundtrack on the way out",
        "even the usher stayed to watch",
    ),
    (
        "I looked at my watch before the first hour was over",
        "I left before the last reel",
        "I wanted my money back the same night",
        "I counted the lamps in the cinema",
        "I called my sister to warn her",
        "I slept through most of it",
        "I would not sit through it for free",
        "half of the room walked out",
        "my children asked to go home",
        "everybody around me was reading messages",
        "strangers complained to each other in the foyer",
        "my father snored loudly beside me",
        "I threw the programme away on the way out",
        "even the usher looked embarrassed",
    ),
)

# Opens a contrast.
OPENINGS = (
    (
        "handsome to look at",
        "rich in promise",
        "strong at the start",
        "full of good intentions",
        "praised wherever it was shown",
        "made by people of real talent",
        "elegant on paper",
        "blessed with a fine idea",
        "decorated with prizes",
    ),
    (
        "slow to start",
        "clumsy in places",
        "thin on plot",
        "short of new ideas",
        "mocked wherever it was shown",
        "made with very little money",
        "foolish on paper",
        "burdened with a silly title",
        "ignored by every jury",
    ),
)

HEDGES = (
    "on the whole,",
    "to be fair,",
    "if I am honest,",
    "for the most part,",
    "after a second viewing,",
    "as far as I can tell,",
    "in the end,",
    "looking back,",
    "I have to say that",
    "it must be said that",
    "my friends agree that",
    "whatever the posters say,",
    "apart from a few minutes,",
    "compared with the trailer,",
    "speaking as a teacher,",
    "unlike most critics, I think that",
)

TAILS = (
    "from start to finish",
    "throughout",
    "from the first scene on",
    "this time",
    "more than once",
    "in scene after scene",
    "to the very end",
    "whenever it matters",
    "between the musical numbers",
)

GENRES = (
    "thriller comedy western documentary romance musical mystery sequel remake melodrama fable "
    "farce satire biography adventure tragedy prequel parody"
)

TOPICS = (
    "about two sisters who share a boat",
    "about a baker who cannot sleep",
    "about a train that never arrives",
    "about a retired judge",
    "about a village choir",
    "about a lost letter",
    "about three generations of clockmakers",
    "about a boxer who paints",
    "about a winter at sea",
    "about a robbery on a ferry",
    "about growing up in a lighthouse",
    "about a cook and her rival",
    "about an astronaut who keeps bees",
    "about the invention of the umbrella",
    "about a chess champion and his shadow",
    "about four orphans and a stolen violin",
    "about a gardener accused of murder",
    "about an earthquake and its rumours",
    "about a translator between two enemies",
    "about twins who swap passports",
    "about an archive of forbidden maps",
    "about a goalkeeper with vertigo",
    "set in a fishing village",
    "set in a department store",
    "set during a single night",
    "set on a mountain railway",
    "set inside a travelling circus",
    "set among pearl divers",
    "set in a bankrupt hospital",
    "set at a provincial airport",
    "told by a dying king",
    "told from the end to the beginning",
    "told through answering machines",
    "told without a spoken word",
)

PLACES = (
    "Lisbon Oslo Cairo Lima Kyoto Dublin Havana Tbilisi Nairobi Prague Montreal Glasgow Jakarta "
    "Palermo Helsinki Valparaiso"
)

OCCASIONS = (
    "on a wet Tuesday",
    "at a late showing",
    "with my grandmother",
    "in a half-empty theatre",
    "at an open-air festival",
    "on a crowded aeroplane",
    "during a thunderstorm",
    "after a long shift",
    "with forty schoolchildren",
    "on my birthday",
    "without any expectations",
    "next to a famous critic",
)

FIRST_NAMES = (
    "Mira Tomas Ingrid Kwame Yusuf Clara Anton Leila Bruno Sanna Rafael Odile Hiro Paloma Viktor "
    "Nadia Emeka Greta Lorcan Zofia"
)
LAST_NAMES = (
    "Okafor Lindqvist Barros Tanaka Moreau Haddad Petrov Quispe Varga Nkemelu Solberg Castellan "
    "Drummond Ishikawa Farrow Jelinek Mbeki Thornbury Ruiz Adler"
)
ROLES = (
    "detective nurse smuggler widow pianist sheriff priest inventor queen lawyer thief captain "
    "beekeeper spy butler astronomer mayor swindler"
)
TITLE_FIRST = (
    "Paper Salt Winter Glass Copper Silent Northern Second Crooked Hollow Amber Borrowed Distant "
    "Burning Seventh Wooden Scarlet Frozen Velvet Hidden"
)
TITLE_LAST = (
    "Orchard Road Ferry Harbour Garden Letter Station Kingdom Mirror Summer River Witness Bridge "
    "Parade Island Lantern Quarry Horizon Avenue Pilgrim"
)

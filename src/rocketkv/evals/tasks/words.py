"""Plain English words for keys and lists, chosen for this project and free to use under its licence.

RULER draws its words from a package of English word lists; these are fewer. `distinct_words` says where more come from.
"""

from __future__ import annotations

import random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ADJECTIVES = _words(
    """
    able acid agile amber ample ancient angry arctic arid ashen atomic avid awake azure balmy bare basic beige big
    bitter bland blank bleak blind blond blue blunt bold bony bossy brainy brash brave brief bright brisk brittle
    broad bronze brown bulky bumpy burly busy calm candid careful caring casual central chalky charming cheap cheerful
    chief chilly chosen chubby civic civil classic clean clear clever close cloudy clumsy coarse coastal cold colossal
    common complex cool copper cordial cosmic costly cozy crafty creamy crimson crisp crooked crude cruel crystal
    curious curly curved cute cyan daily damp daring dark dashing dear deep delicate dense distant dizzy double drab
    dreamy dry dual dull dusty dutiful eager early earnest earthy eastern easy elastic elderly electric elegant elite
    empty endless even exact exotic expert faint fair faithful famous fancy fast fatal fearless feisty fertile festive
    few fickle fierce final fine firm fiscal fit fixed flaky flashy flat fleet flimsy floral fluffy fluid fond formal
    fragile frail frank free fresh friendly frosty frozen frugal full fussy fuzzy gentle giant giddy gifted glad
    glassy gleaming global gloomy glossy golden good gothic grand granular grateful gray great greedy green grim
    gritty growing gruff gusty handy happy hardy harsh hasty hazy healthy hearty heavy hefty helpful hidden hollow
    honest honored hot huge humble humid hungry husky icy ideal idle immense indigo infant inner innocent intense
    ivory jade jagged jaunty jazzy jolly jovial joyful juicy keen kind known lame large lasting late lavish lawful
    lazy leafy lean legal level light likely limber linear liquid little lively local lofty lone long loose loud loyal
    lucid lucky lunar lush magic magnetic main major mammoth maroon massive mature meager medieval mellow merry messy
    mighty mild minor mint misty mobile modern modest moist moody mossy muddy murky musical mute mutual naive narrow
    native naval near neat nervous neutral new nice nimble noble noisy normal northern novel oaken oblong odd olive
    open opposite optimal orange orderly ornate outer oval pale parallel past patient peaceful peppy perfect perky
    pink placid plain plump plush poetic polar polite poor portly precious prime prior private proper proud prudent
    public pure purple quaint quick quiet radiant random rapid rare raw ready real recent red regal regular remote
    rich rigid ripe robust rocky rosy rotten rough round rowdy royal ruby rugged rural rustic rusty sacred sad safe
    salty sandy scarce scarlet secret secure senior serene sharp sheer shiny short shrill shy silent silky silly
    silver simple sincere skinny sleek sleepy slender slick slim slippery slow sly small smart smoky smooth snappy
    snowy snug sober social soft solar solemn solid somber sonic sour southern spare sparse special speedy spicy
    spiral splendid spotless spry square squeaky stable stale stark steady steep sterile stern sticky stiff still
    stormy stout straight strange strict strong sturdy subtle sudden sugary sunny super sure sweet swift tall tame
    tangy tart tawny teal tender tense tepid thick thin thirsty thorny tidy tight timid tiny tired topical torn tough
    toxic tranquil trim tropical true trusty twin ultimate unique united upbeat upper upset urban urgent usable useful
    usual utter vague valiant valid vast velvet verbal vibrant vigilant violet viral vital vivid vocal warm wary
    watery wavy weak wealthy weary western wet white whole wide wild willing windy wintry wiry wise witty wooden
    woolly worn worthy wry yellow young youthful zany zealous
    """
)
NOUNS = _words(
    """
    abbey accent acorn actor advice agent airport album alcove alley almond alphabet altar anchor angle animal ankle
    answer antelope anthem antler apple apricot apron arch arena armor arrow artist ash atlas atom attic audience
    author autumn avenue award axis badge badger bagel bakery balcony ball bamboo banana banjo banner barge bark
    barley barn barrel basil basin basket bat bath battery bay beach beacon bead beam bean bear beard beaver bed bee
    beetle bell belt bench berry bicycle bird biscuit bishop blade blanket blizzard blossom board boat bolt bone book
    boot bottle boulder bowl box bracelet branch brass bread breeze brick bridge bronze brook broom brush bucket
    buckle buffalo bugle bulb bundle bunker burrow bus bush butter button cabbage cabin cable cactus cafe cage cake
    calendar camel camera camp canal candle candy cannon canoe canvas canyon cape captain car caravan card cargo
    carpet carrot cart castle cat catalog cathedral cattle cave cedar ceiling cell cellar cello cement census chain
    chair chalk chamber channel chapel chapter chariot chart cheese cherry chess chest chestnut chicken chief chimney
    chin chisel choir cider cinema circle circus citadel citizen city clam clarinet clay cliff clinic clipper cloak
    clock closet cloth cloud clover club coach coal coast coat cobra cocoa coconut code coffee coin collar college
    colony column comb comet compass concert condor cone cookie copper coral cord cork corn corner cottage cotton
    couch council country courage court cousin cow coyote crab cradle crane crater crayon cream creek crest cricket
    crow crown crystal cube cup cupboard curtain curve cushion custom cymbal daisy dam dancer dawn deck deer degree
    delta dentist deputy desert desk dessert device dial diamond diary dinner diploma dirt dish dock doctor dog doll
    dolphin dome donkey door dove dragon drawer dream dress drill drum duck dune dust duty eagle ear earth east echo
    eclipse editor eel egg elbow elephant elevator elk elm ember emblem emerald empire engine envelope equator estate
    evening exit eye fabric factory falcon fan farm farmer father faucet feast feather fence fern ferry festival
    fiddle field fig film filter finch finger fire fish flag flame flask fleece flint flock flood floor flour flower
    flute fog folder forest fork fort fossil fountain fox frame freight frog frost fruit funnel furnace gable galaxy
    gallery garage garden garlic garment gate gazelle gear gem geyser giraffe glacier glass glider globe glove glue
    goat gold gondola goose gorge gown grain granite grape graph grass gravel grove guard guest guide guitar gulf gull
    gym habit hail hair hall hammer hammock hand harbor hare harness harp harvest hat hatch hawk hazel head heart
    hedge heel height helmet hen herald herb herd hermit heron highway hill hinge hippo history hive hockey hole
    holiday honey hood hook horizon horn horse hose hospital hotel hour house hunter husk hut ice igloo inch index ink
    inn insect iris iron island ivy jacket jaguar jam jar jasmine jaw jet jewel journal journey judge jug juice jungle
    jury kayak kennel kernel kettle key kidney king kitchen kite kitten knee knight knot lab label lace ladder lady
    lagoon lake lamb lamp lane lantern lark latch laundry lava lawn lawyer layer leaf leather ledger legend lemon lens
    leopard letter lettuce lever library lid lighthouse lily lime linen lion lip list lizard llama lobby lobster lock
    locket lodge log loom loop lotus lumber lunch lung lynx machine magnet mailbox mammal mango manor mantle map maple
    marble market marsh mask mast match meadow meal medal melon memory menu merchant mermaid metal meteor mile milk
    mill mine mineral minute mirror mitten moat model mole moment monkey month monument moon moose morning mosaic moss
    moth mother motor mountain mouse mouth mule muscle museum mushroom music mustard nail napkin nation nature neck
    needle neighbor nest net nickel night nose notebook novel nurse nutmeg oak oar oasis oat object ocean octopus
    office oil olive onion opal opera orange orbit orchard orchid organ ostrich otter outpost oven owl owner ox oyster
    package paddle page paint palace palm pan panda panel panther paper parade parcel park parlor parrot party passage
    pasta pastry patch path patrol pavement peach peacock peak peanut pear pearl pebble pedal pelican pencil penguin
    people pepper perch perfume person petal pheasant phone photo piano picnic picture pie pier pigeon pillar pillow
    pilot pine pioneer pipe piston pitcher planet plank plant plate platform plaza plow plum pocket poem poet point
    pole pond pony poplar poppy porch port portrait post pot potato pottery powder prairie prince prison prize profit
    puddle pulley pump pumpkin pupil puppet puppy purse puzzle pyramid quail quarry quarter queen quilt quiver rabbit
    raccoon radar radio radish raft rail rain rake ram ranch raven razor recipe record reef relic ribbon rice rider
    ridge ring river road robin rock rocket rod roof room rooster root rope rose route rudder rug ruler runner saddle
    sail salad salmon salt sand sandal sapphire satchel sauce saucer sausage scale scarf scholar school science
    scissors scooter screen screw sea seal season seat seed shadow shark sheep shelf shell shepherd shield ship shirt
    shoe shop shore shoulder shovel shrimp signal silk singer sister skate sketch ski skirt skunk sky slate sled
    sleeve slipper slope snail snake snow soap soccer sock sofa soil soldier song soup spade spark sparrow spear
    sphere spider spinach spire sponge spoon spring sprout spruce squid squirrel stable stadium staff stage stair
    stamp star statue steam steel stem step stick stone stool store stork storm stove strait stream street string
    studio subway sugar suitcase summer summit sun sunset supper surf swallow swamp swan sweater swing sword syrup
    table tablet tail tailor talent tank tape target taxi tea teacher team telescope temple tennis tent terrace
    theater thimble thistle thread throat throne thumb thunder ticket tide tiger tile timber tin toad toast tomato
    tongue tool tooth torch tortoise tower town toy track tractor trade trail train tray treasure tree trench triangle
    tribe trolley trophy trout truck trumpet trunk tube tulip tuna tundra tunnel turkey turnip turtle tusk twig
    umbrella uncle uniform valley valve van vapor vase vault vegetable vehicle veil velvet vessel vest village vine
    vinegar violin volcano vowel voyage wagon waist waiter wall wallet walnut walrus waltz warden wasp watch water
    wave wax weasel weather wedding weed whale wharf wheat wheel whistle wick willow window wine wing winter wire
    wizard wolf woman wood wool word worker workshop wreath wren wrist yacht yard yarn year yogurt zebra zenith zinc
    zipper zone
    """
)
VERBS = _words(
    """
    absorb accept achieve acquire adapt admire admit adopt advance advise afford agree aim allow amuse announce appear
    applaud apply approve argue arrange arrive ascend ask assemble assist assume assure attach attack attempt attend
    attract avoid bake balance bargain bathe become begin behave believe belong bend bind blend bless blink blush
    boast boil borrow bounce bow breathe bring broadcast build burn bury buy calculate call carry carve cast catch
    celebrate change charge chase chat cheer chew choose chop chuckle clap clarify clean climb cling collect combine
    come command compare compete complain compose concern conclude conduct confess confirm connect conquer consider
    consist consult contain continue contrast convince cook copy correct cough count create cross crush cry cure dance
    dare deal decide declare decline decorate decrease defend define delay deliver demand deny depend describe deserve
    design destroy detect develop devote dig discover discuss dislike dive divide donate doubt drag draw drift drink
    drive drop earn eat educate elect embrace emerge employ empower enable encourage end endure engage enjoy enter
    entertain erase escape establish examine exceed excite excuse exercise exist expand expect explain explode explore
    export extend fail fall fasten fear feed feel fetch fight fill find finish fix flee float flow fly fold follow
    forbid force forget forgive form found freeze frighten fry gain gallop gather gaze generate get give glow go
    govern grab greet grin grind grip grow grumble guess handle hang happen hatch haul have heal hear heat help hide
    hire hold hop hope hover hug hum hunt hurry identify ignore imagine imitate impress improve include increase
    indicate inform inherit inject injure insist inspect inspire install intend interrupt introduce invent invest
    invite involve itch join joke jump justify keep kick kneel knit knock know laugh launch lead lean leap learn leave
    lend lift like listen live load look lose love maintain make manage march mark marry matter measure meet melt mend
    mention merge migrate mix moan mourn move multiply need negotiate nod notice obey observe obtain occupy occur
    offer omit operate oppose order organize overcome owe own pack pardon participate pass pause pay perform permit
    persuade pick pinch plan play plead please plunge polish ponder possess pour practice praise pray predict prefer
    prepare present preserve press pretend prevent print proceed produce promise promote protect prove provide publish
    pull punch punish purchase push put question quit race raise reach react read realize receive recognize recover
    reduce refer reflect refuse regret reign reject rejoice relax release rely remain remember remind remove repair
    repeat replace reply report represent request require rescue resemble reserve resist resolve respond rest restore
    retire return reveal reverse review revise reward ride rise roam roar roll rotate row rub ruin run rush sail
    satisfy save say scatter scold scratch scream scrub search seize select sell send separate serve settle sew shake
    share shave shelter shine shiver shoot shout show shrink shrug shut sigh sing sink sip sit skip sleep slide slip
    smash smell smile sneeze sniff snore solve sort sound spell spend spill spin split spread sprinkle squeeze stand
    stare start stay steal steer stir stop stretch strike strive study stumble submit succeed suffer suggest supply
    support suppose surprise surrender surround survive suspect suspend swear sweep swim switch take talk taste teach
    tear tease tell tempt thank think thrive throw tickle tie touch tour trace transfer transform translate travel
    treat tremble trust try tug turn twist type understand unite unlock unpack use vanish vary visit volunteer vote
    wait wake walk wander want warn wash waste wear weave weep weigh welcome whine whisper win wink wipe wish wonder
    work worry wrap wrestle write yawn yell yield
    """
)


WORDS = tuple(sorted({*ADJECTIVES, *NOUNS, *VERBS}))


def word_key(draw: random.Random) -> str:
    """An adjective and a noun with a hyphen between them, such as "calm-harbor"."""
    return f"{draw.choice(ADJECTIVES)}-{draw.choice(NOUNS)}"


def distinct_words(count: int, draw: random.Random) -> list[str]:
    """`count` different words in random order; beyond the list they are compounds of two nouns ("riverlamp").

    Raises:
        ValueError: if there are not as many compounds either.
    """
    if count <= len(WORDS):
        return draw.sample(WORDS, count)
    most = len(NOUNS) ** 2
    if count > most:
        raise ValueError(f"{count:,} different words are wanted and there are {most:,}: choose a shorter length")
    found = dict.fromkeys(WORDS)
    while len(found) < count:
        found[draw.choice(NOUNS) + draw.choice(NOUNS)] = None
    words = list(found)
    draw.shuffle(words)
    return words

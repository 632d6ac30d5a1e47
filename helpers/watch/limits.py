"""Where the rules draw their lines, in one table; each rule's words say what its line is of."""

# A look beside those before it.
EARLIER = 3  # looks that "those before" are at least
EXPLODES = 100  # times the median gradient
AGAIN = 10  # looks in which a rule does not hold, after which it is told anew
FULL_RATE = 0.5  # share of the largest learning rate

# Within a look.
VANISHES = 1e-5  # of the largest layer's gradient
NO_NORM = 1e-7
DEAD = 0.99  # share of the activations
SATURATED = 0.5
SMALL_UPDATE = 1e-6  # of the weights' size
LARGE_UPDATE = 0.5

# Of a batch, over all looks.
PADDED = 0.5
ONE_LABEL = 0.9

# Over losses.
INITIAL = 1.5  # times ln(vocabulary or classes)
OVERFIT = 1.05  # times the least held-out loss
TREND = 20  # steps at either end over which losses are compared
FALL = 0.005  # share of the loss that is a fall
SLOW_STEPS = 1000  # over fewer steps a smaller fall is one
SLOW_STEPS_OF_RANDOM_WEIGHTS = 100
FLAT_STEPS = 1000
SEEN = 2  # times the noise of a mean: a fall is seen
ROOM = 3  # times the noise: what it leaves no room for
RISE = 0.2  # share of the least loss
NOISE = 5  # times the noise of a mean, beside a rise
LITTLE = 0.05  # a loss, in nats: below it nothing is left to learn

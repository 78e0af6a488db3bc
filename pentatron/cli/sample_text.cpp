#include "pentatron/cli/sample_text.h"

namespace pentatron::cli {

const std::string_view kSampleText =
    R"(The harbour town of Ellenwick lies where a short, cold river meets the sea. For most of the year its streets are quiet. The fishing boats leave before sunrise and come back in the early afternoon, and between those hours one hears little more than gulls, church bells and the school on the hill. Only in August, when the regatta brings visitors from the cities, do the two hotels fill up and the bakery on Mill Lane hire a second assistant.

Marta Holm had worked in the harbour office for eleven years when the letter arrived. It was a plain brown envelope without a sender, and inside it she found a single sheet of graph paper with a drawing of the old lighthouse. Someone had marked a window on the third floor and written a date next to it: the ninth of November. She turned the sheet over, but the back was empty.

"It is probably a joke," said her colleague Peter, who was repairing the tide gauge. "The lighthouse has been locked since the new one was built. Even the council has lost the key."

"Then why would anybody bother to draw it so carefully?" Marta asked. She held the paper against the light. "Look, they have counted the steps. Forty-two to the first landing, thirty-eight to the second. You cannot know that unless you have been inside."

In the evening she walked out along the breakwater. The wind had turned to the north, and the water between the stones was the colour of slate. From the end of the wall she could see the lighthouse clearly: a white tower with a rusted gallery, twelve windows, and a door that had been painted green a long time ago. She counted the windows from the bottom. Behind the third one, for less than a second, there was a light.

A tide gauge is a simple instrument. A float rises and falls in a vertical pipe, a wire runs from the float over a wheel, and the wheel moves a pen across a sheet of paper that is wrapped around a slowly turning drum. If the pipe is clean and the clock is wound, the line on the paper shows the height of the water to within a centimetre. Engineers compare such records over decades: if the average level rises by 3 mm per year, the difference after 50 years is 150 mm, which is enough to decide whether a quay is flooded once in a century or once in ten years.
)";

} // namespace pentatron::cli
